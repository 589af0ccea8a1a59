"""Counts of things and times in words: one graph, two graphs, about 3 minutes."""

from __future__ import annotations


def counted(count: int, one: str, several: str | None = None) -> str:
    """Return a number before its noun, in the plural unless it is 1."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def about(seconds: float) -> str:
    """Return a time that is not known exactly, in seconds, minutes or hours."""
    for unit, size in (("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 1.5 * size:
            return f"about {counted(round(seconds / size), unit)}"
    return f"about {counted(max(round(seconds), 1), 'second')}"


def ordinal(number: int) -> str:
    """Return a number as one counts: 1st, 2nd, 3rd, 11th, 22nd."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else endings.get(number % 10, 'th')}"
