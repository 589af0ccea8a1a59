"""Tools for models and graphs: convert, verify, explain, audit."""
