"""Graphs as they are given, and what is known of each op."""
