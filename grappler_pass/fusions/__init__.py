"""Rewrites beside types: fewer passes over large tensors, in float32 as in 16 bits."""

# One module each.
RULES = ("channel_scales",)
