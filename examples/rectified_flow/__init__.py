"""A rectified flow on scikit-learn's handwritten digits: the training that ``make profile`` profiles.

After Liu, Gong and Liu, "Flow Straight and Fast: Learning to Generate and Transfer Data with Rectified
Flow" (2022): the model learns the velocity of straight paths from noise to data.
"""
