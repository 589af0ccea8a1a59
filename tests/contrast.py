"""How well text of one color is read on another, as WCAG 2 reckons it."""

from __future__ import annotations


def contrast_of(one: str, other: str) -> float:
    """Return the ratio of two colors such as "#12202c"; legible is 4.5 and more."""

    def light(color: str) -> float:
        parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
