"""Tests of the seams and of what they infer; a package, for its modules share a training that is driven by hand."""
