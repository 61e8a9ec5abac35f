"""Text and ``report.json`` from a snapshot. Never: measure, I/O."""
