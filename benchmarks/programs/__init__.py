"""Trainings that benchmarks run as programs of their own."""
