"""Samples from beside the training: the running line, processors, memory, accelerators. Never: touch local variables,
keep a frame, make the training wait.
"""
