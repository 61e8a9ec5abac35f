"""What the worker processes of a DataLoader do: sampled there, read here."""
