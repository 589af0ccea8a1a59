"""Gradients of a scaled loss, in true units, and whether they are finite."""
