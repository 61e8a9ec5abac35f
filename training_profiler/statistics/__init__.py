"""Trends, changes of level, histograms, intervals; two runs: which is slower, by how much, where, and what differs.
Never: judge without an interval, read a file.
"""
