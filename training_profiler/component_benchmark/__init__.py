"""Times a model's passes and every distinct module in it, on its real inputs."""
