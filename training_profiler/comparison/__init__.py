"""Two runs: which is slower, by how much, where, and what differs between them; pure functions. Never: read a file,
judge without an interval.
"""
