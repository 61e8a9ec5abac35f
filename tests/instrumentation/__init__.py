"""Tests of the patches and of what is inferred from them. They share a fake training."""
