"""The rewriting pass: graph in, graph out; see `pipeline` for its stages."""
