"""Tests of what only a GPU shows."""
