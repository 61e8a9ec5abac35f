"""Samplers: threads beside the training that record lines of code and the use of the machine."""
