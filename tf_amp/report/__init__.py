"""How results are shown and stored: tables, pages, JSON, files that are whole.

It knows plans, and nothing of the tools whose results it lays out.
"""
