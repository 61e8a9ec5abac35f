"""A trainer for any number of data loaders, all of it said in one YAML file."""
