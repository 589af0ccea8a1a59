"""What keeps slots in float32 and what ties them together: the rules of propagation."""
