"""Recording: what happens while the training runs, and nothing else.

The hot path of the profiler. Nothing beyond the standard library is imported here, no lock is
waited for, no file, log or environment variable is touched, and nothing is raised into user code.
"""
