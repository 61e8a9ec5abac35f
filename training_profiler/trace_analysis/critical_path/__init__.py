"""The chain of work that determines how long the steps of a trace take, and what changes would bring."""
