"""Keeps a trial of the user's training apart: no file changes, none stays, no process lives on."""
