"""Trace files of ``torch.profiler``: gaps and their causes, kernels, memory, rules. Never: run in a training, round a
nanosecond, present half a file as a whole.
"""
