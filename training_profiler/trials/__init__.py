"""Tries changes on a training that nobody edits: what each brings, what it does to the losses, and its edit."""
