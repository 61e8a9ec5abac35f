"""The run folder, the journal, and reading them."""
