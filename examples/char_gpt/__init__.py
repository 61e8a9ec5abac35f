"""A small GPT that learns to write Python, character after character, from Python's own standard library.

After Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), in the form of Andrej
Karpathy's char-rnn (2015). The text is the source that every Python brings along, so nothing is downloaded.
"""
