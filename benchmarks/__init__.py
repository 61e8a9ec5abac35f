"""The numbers the profiler has to reach, measured; ``python -m benchmarks`` runs them all.

Speed of a shared machine varies by a factor of two within minutes. So contenders are measured in short
interleaved rounds, in CPU time, and each round's ratio to a reference of the same round stands beside
the nanoseconds. Verdicts go by medians; the best round is printed for comparison alone.
"""
