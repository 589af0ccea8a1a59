"""Functions compiled by XLA (`jit_compile=True`), which Grappler never sees."""
