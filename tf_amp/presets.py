"""The optimization levels: how much of a graph goes to 16 bits, row by row."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Preset:
    """One optimization level.

    Attributes:
      name: as in `TF_AMP_OPT_LEVEL`.
      rewrites: whether graphs are changed at all.
      priced: whether 16 bits must be faster than float32, casts included.
      heeds_lists: whether denied ops stay float32.
      summary: one line for people.
    """

    name: str
    rewrites: bool
    priced: bool
    heeds_lists: bool
    summary: str


PRESETS = (
    Preset("O0", False, False, True, "float32: every graph stays as it is"),
    Preset("O1", True, True, True, "16 bits where predicted to be faster"),
    Preset("O2", True, False, True, "everything eligible, whatever it costs"),
    Preset("O3", True, False, False, "everything that has a 16-bit kernel"),
)
DEFAULT_LEVEL = "O1"


def level_names() -> tuple[str, ...]:
    """Return the levels' names, in the table's order."""
    return tuple(preset.name for preset in PRESETS)


def preset_of(name: str) -> Preset:
    """Return the row of a level that is known to exist."""
    return next(preset for preset in PRESETS if preset.name == name)
