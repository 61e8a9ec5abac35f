"""Automatic instrumentation: patches of torch record events, and the training loop is inferred from them."""
