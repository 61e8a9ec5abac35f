"""The profiler under training frameworks that own the loop."""
