"""The ranges that tensors were seen to keep to, and what must stay float32 for them."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from grappler_pass.costs.atomic_file import replacing
from grappler_pass.eligibility.exclusions import local_names, without_call_scopes
from tf_amp.errors import ConfigError
from tf_amp.report import codec
from tf_amp.report.counts import counted
from tf_amp.report.display import Display, FittedTable

# AutoCast's bound for activations; of bfloat16, whose range is float32's, the largest.
DEFAULT_LIMITS = {"float16": 512.0, "bfloat16": 3.3895e38}
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38}
# A tensor of which more becomes zero is lost.
DEFAULT_UNDERFLOW = 0.5
_FORMAT = "tf-amp ranges 1"
_NUMBERS = (
    "largest",
    "in batch",
    "smallest",
    "not finite",
    "f16 overflow",
    "f16 underflow",
    "bf16 overflow",
    "bf16 underflow",
    "depth",
)
# What a narrow terminal leaves out, first what matters least.
_SPARE = (
    "in batch",
    "smallest",
    "depth",
    "bf16 underflow",
    "bf16 overflow",
    "not finite",
    "f16 underflow",
    "f16 overflow",
)


@dataclasses.dataclass(frozen=True)
class TensorRange:
    """The values of one tensor in all batches, in figures.

    Attributes:
      node: that makes it.
      output: number of the node's output.
      op: of the node.
      readers: nodes whose type bears on how they read it.
      is_gradient: whether it belongs to a backward pass, which a loss scale moves.
      batches: in which it was seen.
      largest: magnitude.
      largest_in: number of the batch, from 1, in which that was.
      smallest: magnitude that is not zero; infinity where all are zero.
      values: seen in all.
      nonzero: of these.
      not_finite: of these.
      overflow: by type, how many become infinite in it.
      underflow: by type, how many become zero in it.
      depth: how many numbers are summed up for one of its elements; None: no sum.
    """

    node: str
    output: int
    op: str
    readers: tuple[str, ...] = ()
    is_gradient: bool = False
    batches: int = 0
    largest: float = 0.0
    largest_in: int = 0
    smallest: float = math.inf
    values: int = 0
    nonzero: int = 0
    not_finite: int = 0
    overflow: Mapping[str, int] = dataclasses.field(default_factory=dict)
    underflow: Mapping[str, int] = dataclasses.field(default_factory=dict)
    depth: int | None = None

    @property
    def name(self) -> str:
        """The tensor's name: the node's, and the output's number unless 0."""
        return f"{self.node}:{self.output}" if self.output else self.node

    def overflow_share(self, low_dtype: str) -> float:
        """Share of its values that become infinite in a 16-bit type."""
        return self.overflow.get(low_dtype, 0) / max(self.values, 1)

    def underflow_share(self, low_dtype: str) -> float:
        """Share of its values that are not zero, but become so in a 16-bit type."""
        return self.underflow.get(low_dtype, 0) / max(self.nonzero, 1)


@dataclasses.dataclass(frozen=True, repr=False)
class Ranges(Display):
    """All tensors of one graph or of several, as the nodes make them.

    Attributes:
      tensors: in the order of the graph.
      batches: that were run.
      limit: largest magnitude that is safe; None: as the type has it.
      underflow: largest share of values that may become zero.
      depth: largest number of values that may be summed up; None for any.
    """

    tensors: tuple[TensorRange, ...]
    batches: int = 0
    limit: float | None = None
    underflow: float = DEFAULT_UNDERFLOW
    depth: int | None = None

    def unsafe(self, low_dtype: str, limit: float | None = None) -> dict[str, str]:
        """Name the nodes that must stay float32, each with the reason.

        Args:
          low_dtype: "bfloat16" or "float16".
          limit: largest magnitude that is safe; by default what these ranges were
            measured for, else 512 in float16, and in bfloat16 what the type holds.

        Returns:
          By name of the node that makes a tensor which leaves the range, or reads it.
          Of nodes that inlining has put into the scope of a call the name without.

        Raises:
          ConfigError: the limit is not a number greater than 0.
        """
        limit = self.limit if limit is None else limit
        safe = DEFAULT_LIMITS[low_dtype] if limit is None else float(limit)
        if not safe > 0.0:
            raise ConfigError(f"limit: received {limit!r}; allowed is what is above 0.")
        reasons: dict[str, str] = {}
        for seen in self.tensors:
            if why := self._why_unsafe(seen, low_dtype, safe):
                # What makes and reads it, as functions call it before inlining.
                for name in (seen.node, *seen.readers):
                    for local in local_names(name)[1:] or (name,):
                        reasons.setdefault(local, why)
        return reasons

    def _why_unsafe(self, seen: TensorRange, low_dtype: str, limit: float) -> str:
        """Say by what a tensor leaves the range; empty where it keeps to it.

        Gradients, which a loss scale moves, may be as large as the type holds, and
        become zero.
        """
        name = without_call_scopes(seen.name)
        limit = max(limit, LARGEST[low_dtype]) if seen.is_gradient else limit
        if seen.largest > limit:
            return (
                f"{name} reaches {seen.largest:.3g} in batch {seen.largest_in}, "
                f"beyond {limit:.4g}"
            )
        lost = seen.underflow_share(low_dtype)
        if lost > self.underflow and not seen.is_gradient:
            return f"{lost:.0%} of {name} become zero in {low_dtype}"
        if self.depth is not None and (seen.depth or 0) > self.depth:
            return f"{name} sums up {seen.depth}, more than {self.depth}"
        return ""

    def save(self, path: pathlib.Path) -> None:
        """Write JSON that `load` reads, and `TF_AMP_RANGES` names."""
        with replacing(path) as file:
            file.write(self.to_json())

    @classmethod
    def load(cls, path: pathlib.Path) -> Ranges:
        """Read what `save` wrote.

        Raises:
          ConfigError: there is no such file, or it holds no ranges.
        """
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"ranges: {path} cannot be read: {error}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"ranges: {path} holds no ranges; wanted is a file that `tf-amp "
                f"ranges --out` has written ({error})."
            ) from error

    def to_json(self) -> str:
        """Return JSON that `from_json` loads back equal; no number is infinite."""
        rows = [codec.plain(seen) for seen in self.tensors]
        for row in rows:
            row["smallest"] = None if math.isinf(row["smallest"]) else row["smallest"]
        return codec.to_json({"format": _FORMAT, **codec.plain(self), "tensors": rows})

    @classmethod
    def from_json(cls, text: str) -> Ranges:
        """Load what `to_json` wrote.

        Raises:
          ValueError, KeyError, TypeError: it is something else.
        """
        fields: dict[str, Any] = json.loads(text)
        if (found := fields.pop("format")) != _FORMAT:
            raise ValueError(f"format {found!r}, not {_FORMAT!r}")
        for row in fields["tensors"]:
            row["smallest"] = math.inf if row["smallest"] is None else row["smallest"]
        return codec.from_plain(cls, fields)

    def top(self, count: int | None) -> Ranges:
        """Return the `count` tensors of the largest magnitude first; None: all."""
        ranked = sorted(self.tensors, key=lambda seen: -seen.largest)
        return dataclasses.replace(self, tensors=tuple(ranked[:count]))

    def summary(self) -> str:
        """Return how many tensors were seen, in how many batches."""
        tensors = counted(len(self.tensors), "tensor")
        return f"{tensors} in {counted(self.batches, 'batch', 'batches')}"

    def __rich__(self) -> Group:
        """Show in a terminal, a narrow one with what matters most."""
        titles = ("tensor", "op", *_NUMBERS)
        rows = [
            (
                seen.name,
                seen.op,
                f"{seen.largest:.3g}",
                str(seen.largest_in),
                "-" if math.isinf(seen.smallest) else f"{seen.smallest:.2g}",
                str(seen.not_finite),
                *(
                    f"{share:.2%}" if share else "0"
                    for dtype in ("float16", "bfloat16")
                    for share in (
                        seen.overflow_share(dtype),
                        seen.underflow_share(dtype),
                    )
                ),
                "-" if seen.depth is None else str(seen.depth),
            )
            for seen in self.tensors
        ]
        table = FittedTable(titles, rows, numbers=_NUMBERS, spare=_SPARE)
        return Group(Text(self.summary()), table)
