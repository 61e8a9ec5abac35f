"""Sinks: finished text or figures go out, one backend each."""
