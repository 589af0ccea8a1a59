"""Counts of things in words: one graph, two graphs."""

from __future__ import annotations


def counted(count: int, one: str, several: str | None = None) -> str:
    """Return a number before its noun, in the plural unless it is 1."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"
