"""What callbacks find out about a `fit` under way: steps, scale, gradients, plans."""
