"""Device time: events on the accelerator, pooled, and asked for their times later; the device is never waited for."""
