"""A plan's decisions as a table for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from grappler_pass.notebook_display import plain_text

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Decision, Fusion

_MILLI = 1e3
# Names of nodes in nested loops reach hundreds of characters; nothing is cut off.
_WIDTH = 4000
_COLUMNS = (
    "type attribute",
    "op",
    "dtype",
    "f32 ms",
    "16-bit ms",
    "cast ms",
    "estimate",
    "shape",
    "reason",
)


def table_text(decisions: Iterable[Decision]) -> str:
    """Return a header and one line per decision, nothing cut off."""
    table = Table(box=None, pad_edge=False, header_style="")
    for name in _COLUMNS:
        right = name.endswith(" ms")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for decision in decisions:
        table.add_row(*_cells(decision))
    return plain_text(table, _WIDTH)


def folded_table(decisions: Iterable[Decision]) -> Table:
    """Return a table that folds into a terminal's width, op under type attribute."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("type attribute, op, shape", overflow="fold", ratio=5)
    table.add_column("dtype")
    table.add_column("f32 ms", justify="right")
    table.add_column("16 bits + casts", justify="right", max_width=10)
    table.add_column("reason", overflow="fold", ratio=4)
    for decision in decisions:
        shape = shape_text(decision.shape)
        table.add_row(
            Text(f"{decision.slot}\n {decision.op} {shape}"),
            decision.dtype,
            _short(decision.seconds_float32),
            _low_and_casts(decision),
            Text(decision.why),
        )
    return table


def fusions_table(fusions: Iterable[Fusion]) -> Table:
    """Return a table of rewrites beside types, one row per rule and reason."""
    groups: dict[tuple[str, str], list[float]] = {}
    for each in fusions:
        groups.setdefault((each.rule, str(each.reason)), []).append(each.seconds)
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("rewrite", "times", "saves ms", "reason"):
        table.add_column(name, overflow="fold")
    for (rule, reason), seconds in groups.items():
        saved = _milliseconds(sum(seconds) or None)
        table.add_row(rule, str(len(seconds)), saved, Text(reason))
    return table


def fusions_text(fusions: Iterable[Fusion]) -> str:
    """Return that table as lines; nothing where there are none."""
    table = fusions_table(fusions)
    return plain_text(table, _WIDTH) if table.rows else ""


def _low_and_casts(decision: Decision) -> str:
    if decision.seconds_low is None:
        return "-"
    return f"{_short(decision.seconds_low)} + {_short(decision.cast_seconds)}"


def _short(seconds: float) -> str:
    milliseconds = seconds * _MILLI
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.2g}"


def _cells(decision: Decision) -> tuple[str, ...]:
    return (
        str(decision.slot),
        decision.op,
        decision.dtype,
        _milliseconds(decision.seconds_float32),
        _milliseconds(decision.seconds_low),
        _milliseconds(decision.cast_seconds),
        _price_text(decision),
        shape_text(decision.shape),
        decision.why,
    )


def _price_text(decision: Decision) -> str:
    if not decision.error:
        return decision.source or "-"
    return f"{decision.source} ± {decision.error:.0%}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * _MILLI:.4f}"


def shape_text(shape: tuple[int | None, ...] | None) -> str:
    """Return sizes with an x between them; "?" is what is not known."""
    if shape is None:
        return "?"
    return "x".join("?" if dim is None else str(dim) for dim in shape) or "scalar"
