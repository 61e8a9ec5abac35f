"""Analysis of Kineto traces, ours or anybody's; pure but for reading the file."""
