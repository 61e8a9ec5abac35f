"""Times a model's passes and every distinct module in it, on the inputs that it really gets."""
