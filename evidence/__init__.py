"""The published experiments on quality, redone: ``python -m evidence --all``."""
