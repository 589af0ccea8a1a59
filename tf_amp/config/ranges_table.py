"""Ranges as a table for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from tf_amp.report.display import FittedTable

if TYPE_CHECKING:
    from tf_amp.config.ranges import Ranges, TensorRange

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


def shown(ranges: Ranges) -> Group:
    """Return the table, of which a narrow terminal shows what matters most."""
    table = FittedTable(_SPARE)
    table.add_column("tensor", overflow="fold")
    table.add_column("op")
    for name in _NUMBERS:
        table.add_column(name, justify="right")
    for seen in ranges.tensors:
        table.add_row(*_cells(seen))
    return Group(Text(ranges.summary()), table)


def _cells(seen: TensorRange) -> tuple[Text | str, ...]:
    shares = (
        share(dtype)
        for dtype in ("float16", "bfloat16")
        for share in (seen.overflow_share, seen.underflow_share)
    )
    return (
        Text(seen.name),
        seen.op,
        f"{seen.largest:.3g}",
        str(seen.largest_in),
        "-" if math.isinf(seen.smallest) else f"{seen.smallest:.2g}",
        str(seen.not_finite),
        *(f"{share:.2%}" if share else "0" for share in shares),
        "-" if seen.depth is None else str(seen.depth),
    )
