"""Records as they are in memory, in files and in messages, with bounds of what is read. Never: import more than the
standard library and msgspec.
"""
