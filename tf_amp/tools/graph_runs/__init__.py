"""Graphs of a program run once more, on values that are given."""
