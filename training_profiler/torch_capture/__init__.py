"""Deep capture: a few steps of a training, recorded by torch.profiler and written as a trace for ``trace``."""
