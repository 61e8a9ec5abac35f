"""Keeps the profiler's own errors and threads from harming the training."""
