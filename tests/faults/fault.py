"""A fault, as a sentence of behavior and as a text that is replaced."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Mapping

# Modules here with `FAULTS`, each with the table of what finds them beside it.
LISTS = ("in_the_pass", "in_training_and_tools")


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is planted, and where.

    Attributes:
      sentence: what then happens, in words that hold for any code with this fault.
      path: the file, from the root of the sources.
      old: text that occurs once in the file.
      new: text put in its place.
      tests: files, folders or single tests that are asked first.
      further: more texts to be replaced in that file, with what takes their place.
    """

    sentence: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    further: tuple[tuple[str, str], ...] = ()

    def planted_in(self, source: str) -> str:
        """Return the text of the file with the fault.

        Raises:
          ValueError: a text to be replaced does not occur exactly once.
        """
        for old, new in ((self.old, self.new), *self.further):
            if source.count(old) != 1:
                raise ValueError(
                    f"{self.sentence!r}: in {self.path} occurs {source.count(old)} "
                    f"times, and should once: {old!r}"
                )
            source = source.replace(old, new)
        return source


@functools.cache
def lists() -> Mapping[str, tuple[Fault, ...]]:
    """Return the faults by the name of their list."""
    return {
        name: importlib.import_module(f"tests.faults.{name}").FAULTS for name in LISTS
    }
