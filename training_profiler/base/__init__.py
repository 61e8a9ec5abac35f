"""Base: words that every folder shares: errors, units, text, the switch. Imports nothing above it."""
