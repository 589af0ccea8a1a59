"""Functions of a library: as graphs that the pass takes, and put back."""
