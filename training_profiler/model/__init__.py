"""Records as they are in memory, in files, and in messages between processes, with the bounds of what is read."""
