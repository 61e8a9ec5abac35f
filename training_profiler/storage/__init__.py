"""Runs: the folder of a run, its journal, and reading both back."""
