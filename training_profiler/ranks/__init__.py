"""Ranks of a distributed training, without a collective."""
