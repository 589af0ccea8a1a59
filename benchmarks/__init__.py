"""Measurements of whole models, of the pass itself and of the import time."""
