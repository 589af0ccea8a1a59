"""Convert stored models: SavedModels, frozen graphs and Keras files.

Thin around the one pass: a file is read, every function of it goes through the pass,
and the outcome is written beside a report. `conversion` is the whole of it in order.
"""
