"""A fault, as a sentence of behavior and as texts that are replaced."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib

LIST = pathlib.Path(__file__).with_name("faults.txt")


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is planted, and where.

    Attributes:
      sentence: what then happens, in words that hold for any code with this fault.
      path: the file, from the root of the sources.
      texts: pairs of a text that occurs once in the file and what takes its place.
      tests: files, folders or single tests that are asked first.
    """

    sentence: str
    path: str
    texts: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    def planted_in(self, source: str) -> str:
        """Return the text of the file with the fault.

        Raises:
          ValueError: a text to be replaced does not occur exactly once.
        """
        for old, new in self.texts:
            if source.count(old) != 1:
                raise ValueError(
                    f"{self.sentence!r}: in {self.path} occurs {source.count(old)} "
                    f"times, and should once: {old!r}"
                )
            source = source.replace(old, new)
        return source


@functools.cache
def all_faults() -> tuple[Fault, ...]:
    """Return the faults of the list, in its order."""
    _, *parts = LIST.read_text().split("\n# ")[1:]
    return tuple(map(_fault_from_text, parts))


def _fault_from_text(text: str) -> Fault:
    sentence, place, *lines = text.split("\n")
    # Runs of lines with the same sign; what takes the place of nothing begins no pair.
    runs = [
        (sign, [line[1:] for line in run])
        for sign, run in itertools.groupby(lines, key=lambda line: line[:1])
    ]
    texts: list[tuple[str, str]] = []
    for sign, run in runs:
        if sign == "-":
            texts.append(("\n".join(run), ""))
        elif sign == "+":
            texts[-1] = texts[-1][0], "\n".join(run)
    tests = tuple(test.strip() for sign, run in runs if sign == "?" for test in run)
    return Fault(sentence, place.removeprefix("in "), tuple(texts), tests)
