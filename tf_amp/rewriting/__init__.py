"""Graphs as TensorFlow passes them on, and as they run."""
