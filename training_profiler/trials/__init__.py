"""Tries changes on an unedited training: what each brings, what it does to the losses, and its edit."""
