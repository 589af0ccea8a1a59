"""A plan applied to a graph, and what else is changed in it."""
