"""The plan of a function without running it, and predictions next to measurements."""
