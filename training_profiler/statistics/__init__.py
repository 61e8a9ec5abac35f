"""Trends, changes of level, histograms, intervals of means and of shifts. Never: know what a series is of, I/O."""
