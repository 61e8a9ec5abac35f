"""The monitor: what a look at the process from beside the training sees; the training itself does nothing for it."""
