"""Faults that are planted in a copy of the sources, and the tests that find them."""
