"""Run a copy of a graph by itself, with private variables and no effects."""
