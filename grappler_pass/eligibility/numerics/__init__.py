"""How exact tensors are, and what rounding them to 16 bits would harm."""
