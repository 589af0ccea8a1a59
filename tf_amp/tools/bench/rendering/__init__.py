"""A record as a table, a chart or a page."""
