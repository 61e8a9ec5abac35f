"""Settings: every variable and flag, read once."""
