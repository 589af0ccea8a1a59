"""A copy of a graph, run for its time only."""
