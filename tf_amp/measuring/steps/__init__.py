"""A program's own steps in float32 and in 16 bits, compared."""
