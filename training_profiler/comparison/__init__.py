"""Decides whether the steps of one run take longer than those of another: pure functions over series of steps."""
