"""Operations that must be float32 for the numbers to hold, and the file of them."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable

from grappler_pass.costs.atomic_file import replacing


@dataclasses.dataclass(frozen=True)
class Culprit:
    """An operation that a tolerance does not allow in 16 bits.

    Attributes:
      node: its name in the graph.
      op: what it computes, such as "MatMul".
      layer: the name scope around it, which Keras makes of its layers' names; of a
        gradient, that of the operation it belongs to.
      pattern: regular expression that excludes it and no other.
    """

    node: str
    op: str
    layer: str
    pattern: str

    def __str__(self) -> str:
        """Return one line."""
        where = f" in layer {self.layer}" if self.layer else ""
        return f"{self.node} ({self.op}){where}"


def write_exclude_list(
    path: pathlib.Path,
    culprits: Iterable[Culprit],
    heading: str = "",
    in_force: Iterable[str] = (),
) -> None:
    """Write the patterns one per line, each behind what it stands for.

    `TF_AMP_EXCLUDE=@FILE` and `--exclude @FILE` read it. A list whose patterns were in
    force when the culprits were found is added to; any other is replaced by one that
    begins with the heading as a comment.
    """
    lines = _lines_in_force(path, frozenset(in_force))
    lines = lines or [f"# {line}" for line in heading.splitlines()]
    for culprit in culprits:
        if culprit.pattern not in lines:
            lines += [f"# {culprit}", culprit.pattern]
    with replacing(path) as file:
        file.write("\n".join(lines) + "\n")


def _lines_in_force(path: pathlib.Path, in_force: frozenset[str]) -> list[str]:
    """Return the lines of a list of which every pattern is in force, else none."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines()]
    patterns = {line for line in lines if line and line[0] != "#"}
    return lines if patterns and patterns <= in_force else []
