"""Recording: takes events while the training runs, and does nothing else.

This is the hot path of the profiler. It imports only the standard library, waits for no lock, touches no file, log or
environment variable, and raises nothing into user code.
"""
