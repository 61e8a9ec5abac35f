"""A trainer for any number of data loaders, configured by one YAML file."""
