"""A masked autoencoder on scikit-learn's handwritten digits.

After He et al., "Masked Autoencoders Are Scalable Vision Learners" (2021): most of an image is hidden, and the model
learns to fill it in from the few visible patches.
"""
