"""The weights of a stored model in 16 bits."""
