"""The optimization levels: how much of a graph goes to 16 bits, row by row.

A 16-bit type beside `O0` is no contradiction: it is how a program or a command line
that names its type is run once in float32, to compare with.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Preset:
    """One optimization level.

    Attributes:
      name: as in `TF_AMP_OPT_LEVEL`, and as the pass knows it.
      rewrites: whether graphs are changed at all.
      summary: one line for people.
    """

    name: str
    rewrites: bool
    summary: str


PRESETS = (
    Preset("O0", False, "float32: every graph stays as it is"),
    Preset("O1", True, "16 bits where that is predicted to be faster"),
    Preset("O2", True, "everything eligible, whatever it costs"),
    Preset("O3", True, "everything that has a 16-bit kernel and may go low"),
)
DEFAULT_LEVEL = "O1"


def level_names() -> tuple[str, ...]:
    """Return the levels' names, in the table's order."""
    return tuple(preset.name for preset in PRESETS)


def preset_of(name: str) -> Preset:
    """Return the row of a level that is known to exist."""
    return next(preset for preset in PRESETS if preset.name == name)
