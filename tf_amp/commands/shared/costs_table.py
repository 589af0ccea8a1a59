"""Measured costs as tables, one per device and version of TensorFlow."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import rich
from rich.markup import escape
from rich.table import Table

from grappler_pass.costs.database.probes import MEASURED_DTYPE
from grappler_pass.costs.database.records import CostRow, Row, Verdict

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))

# The largest and the newest first, names from A to Z.
_ORDERS: dict[str, Callable[[CostRow], Any]] = {
    "op": lambda row: (row.measured.probe.op, row.measured.probe.key, _dtype(row)),
    "dtype": lambda row: (_dtype(row), row.measured.probe.op, row.measured.probe.key),
    "seconds": lambda row: -row.measured.sample.seconds,
    "spread": lambda row: -row.measured.sample.spread,
    "count": lambda row: -row.measured.sample.count,
    "when": lambda row: -row.measured.sample.when,
}


def show(rows: Sequence[Row], *, sort: str, limit: int | None) -> None:
    """Print what was measured, verdicts counted; `limit` is of rows per table."""
    for measured_on, group, costs in _groups(rows, sort):
        rich.print(
            f"[bold]{escape(measured_on[0])}[/], TensorFlow {escape(measured_on[1])}"
        )
        rich.print(_table(costs[:limit]))
        if limit is not None and len(costs) > limit:
            print(f"... and {len(costs) - limit} more: --limit 0 shows all")
        verdicts = [row.faster for row in group if isinstance(row, Verdict)]
        if verdicts:
            print(
                f"graphs compared: {len(verdicts)}, of which faster rewritten: "
                f"{sum(verdicts)}"
            )
        print()


def json_from(rows: Sequence[Row], *, sort: str, limit: int | None) -> str:
    """Return the same as JSON: an array with an object for each table.

    Its rows have the op, the shapes and types of its inputs, the dtype measured,
    "seconds" with the "spread" of their logarithm and the "count" of runs, and "when"
    in seconds since 1970.
    """
    tables = [
        {
            "device": measured_on[0],
            "tensorflow": measured_on[1],
            "rows": [_fields(row) for row in costs[:limit]],
            "verdicts": len(group) - len(costs),
        }
        for measured_on, group, costs in _groups(rows, sort)
    ]
    return json.dumps(tables, indent=1)


def _fields(row: CostRow) -> dict[str, Any]:
    probe, sample = row.measured.probe, row.measured.sample
    return {
        "op": probe.op,
        "inputs": [
            {
                "shape": spec.shape,
                "dtype": spec.dtype.replace(MEASURED_DTYPE, row.measured.dtype),
            }
            for spec in probe.inputs
        ],
        "dtype": row.measured.dtype,
        "seconds": sample.seconds,
        "spread": sample.spread,
        "count": sample.count,
        "when": sample.when,
    }


def _groups(
    rows: Sequence[Row], sort: str
) -> Iterator[tuple[tuple[str, str], list[Row], list[CostRow]]]:
    """Yield device and version, all their rows, and those that are costs, sorted."""
    for measured_on, members in itertools.groupby(
        sorted(rows, key=_device_and_version), _device_and_version
    ):
        group = list(members)
        costs = [row for row in group if isinstance(row, CostRow)]
        yield measured_on, group, sorted(costs, key=_ORDERS[sort])


def _device_and_version(row: Row) -> tuple[str, str]:
    return (row.device, row.tensorflow)


def _dtype(row: CostRow) -> tuple[bool, str]:
    """Order float32 before what it is compared with."""
    return (row.measured.dtype != "float32", row.measured.dtype)


def _table(rows: Sequence[CostRow]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("op", overflow="fold", max_width=26)
    table.add_column("shapes", overflow="fold")
    table.add_column("dtype", no_wrap=True)
    for name in ("time", "spread", "times", "when"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        probe, sample = row.measured.probe, row.measured.sample
        shapes = ", ".join(_shape(spec.shape, spec.dtype) for spec in probe.inputs)
        table.add_row(
            escape(probe.op),
            escape(shapes),
            row.measured.dtype,
            _duration(sample.seconds),
            f"{sample.spread:.0%}",
            str(sample.count),
            f"{datetime.datetime.fromtimestamp(sample.when):%Y-%m-%d}",
        )
    return table


def _shape(shape: Sequence[int | None] | None, dtype: str) -> str:
    sizes = "x".join(map(str, shape or ())) or "scalar"
    return sizes if dtype in (MEASURED_DTYPE, "float32") else f"{sizes} {dtype}"


def _duration(seconds: float) -> str:
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.1e} s"
