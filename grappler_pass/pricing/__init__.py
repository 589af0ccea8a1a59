"""Estimated seconds of the nodes of a graph."""
