"""When ``torch.profiler`` records a few steps, and the trace file. Never: record beside another profiler, write on
the training thread.
"""
