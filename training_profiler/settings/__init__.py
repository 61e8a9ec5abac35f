"""Every setting; the only reader of the environment."""
