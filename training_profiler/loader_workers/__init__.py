"""What the worker processes of a DataLoader do: sampled there, handed over in small files. Never: make a worker wait,
wrap an object of the user's.
"""
