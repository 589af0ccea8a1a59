"""Operations that must be float32 for the numbers to hold, and the file of them."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Culprit:
    """An operation that a tolerance does not allow in 16 bits.

    Attributes:
      node: its name in the graph.
      op: what it computes, such as "MatMul".
      layer: the name scope around it, which Keras makes of its layers' names; of a
        gradient, that of the operation it belongs to.
      pattern: regular expression that excludes it.
    """

    node: str
    op: str
    layer: str
    pattern: str

    def __str__(self) -> str:
        """Return one line."""
        where = f" in layer {self.layer}" if self.layer else ""
        return f"{self.node} ({self.op}){where}"


def culprit_of(name: str, op: str, layer: str) -> Culprit:
    """Return a culprit with the pattern that finds its name and no other."""
    from grappler_pass.eligibility.exclusions import without_call_scopes

    plain = without_call_scopes(name)
    return Culprit(name, op, layer, f"^{re.escape(plain)}$")


def write_exclude_list(
    path: pathlib.Path, culprits: Iterable[Culprit], heading: str = ""
) -> None:
    """Write the patterns one per line, each behind what it stands for.

    `TF_AMP_EXCLUDE=@FILE` and `--exclude @FILE` read it.
    """
    from grappler_pass.costs.atomic_file import replacing

    lines = [f"# {line}" for line in heading.splitlines()]
    for culprit in culprits:
        lines += [f"# {culprit}", culprit.pattern]
    with replacing(path) as file:
        file.write("\n".join(lines) + "\n")
