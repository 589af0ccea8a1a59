"""Which ranges the tensors of a graph keep to while it runs."""
