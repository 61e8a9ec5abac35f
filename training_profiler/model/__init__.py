"""Records as they are in memory, in files and in messages, with bounds of what is read; frozen statistics in seconds,
the only input of rules, reports and trackers. Never: import more than the standard library and msgspec.
"""
