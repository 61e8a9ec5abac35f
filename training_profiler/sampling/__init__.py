"""Samples from beside the training: the running line, processors, memory, accelerators, workers of a DataLoader. Never:
touch local variables, keep a frame, make the training or a worker wait.
"""
