"""What the first steps of a training show: one file an inspection, and the FLOPs of a step."""
