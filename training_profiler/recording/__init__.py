"""Sections, steps, epochs, loaders: one event stream per thread. Never: import third-party packages, lock, log,
format, raise into the training.

This is the hot path of the profiler. It imports only the standard library, waits for no lock, touches no file, log or
environment variable, and raises nothing into user code.
"""
