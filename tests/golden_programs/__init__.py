"""Small programs with large tensors whose plans are kept; none is ever executed."""
