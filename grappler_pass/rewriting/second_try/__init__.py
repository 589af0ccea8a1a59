"""Gradients that overflowed, taken a second time without a loss scale."""
