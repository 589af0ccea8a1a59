"""One module per family; each has the one name `FAMILY`."""

from __future__ import annotations

import importlib

from evidence.family import Family

NAMES = (
    "classification",
    "detection",
    "translation",
    "generation",
    "wide_deep",
    "language",
)


def family_of(name: str) -> Family:
    """Return the family called ``name``."""
    family: Family = importlib.import_module(f"{__name__}.{name}").FAMILY
    return family
