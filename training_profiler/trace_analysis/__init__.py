"""Trace of Kineto traces from any program. Only the loading has side effects: it reads the file."""
