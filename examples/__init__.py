"""Real trainings that show the profiler at work."""
