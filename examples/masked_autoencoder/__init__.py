"""A masked autoencoder on scikit-learn's handwritten digits.

After He et al., "Masked Autoencoders Are Scalable Vision Learners" (2021): most of an image is hidden, and the model
learns what stood there from the few patches that are left.
"""
