"""The chart of methods x batch sizes: a PNG by matplotlib, part of a page by plotly."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

from tf_amp.errors import ConfigError
from tf_amp.tools.bench.job import FLOAT32
from tf_amp.tools.bench.record import Record
from tf_amp.tools.bench.speed_ups import SpeedUp
from tf_amp.tools.bench.summary import Row, summarized
from tf_amp.tools.bench.words import title_of

_AXIS = "speed-up over float32 (bars: lowest and highest round)"
_WIDTH = 0.8


def check_extra(option: str, extra: str, *modules: str) -> None:
    """Refuse an option whose extra is not installed.

    Raises:
      ConfigError: it is not; the message names the command that installs it.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"{option} needs {name}, which is not installed: pip install "
                f"'tf-amp[{extra}]'."
            ) from error


def png_of(record: Record) -> bytes:
    """Return the chart as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    groups = [*_groups(record)]
    width = _WIDTH / max(len(groups), 1)
    batches = [*map(_label, record.job.batches)]
    for number, (method, rows) in enumerate(groups):
        offset = (number - (len(groups) - 1) / 2) * width
        places = [batches.index(_label(batch)) + offset for batch, _ in rows]
        heights = [each.median for _, each in rows]
        bars = _error_bars([each for _, each in rows])
        axes.bar(places, heights, width, yerr=bars, capsize=2, label=method)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(batches)), batches)
    axes.set(xlabel="batch size", ylabel=_AXIS, title=title_of(record.job))
    axes.legend()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def html_of(record: Record) -> str:
    """Return the chart as a part of a page, with all that it needs."""
    from plotly.graph_objects import Figure

    figure = Figure()
    for method, rows in _groups(record):
        below, above = _error_bars([each for _, each in rows])
        figure.add_bar(
            name=method,
            x=[_label(batch) for batch, _ in rows],
            y=[each.median for _, each in rows],
            error_y={"type": "data", "array": above, "arrayminus": below},
        )
    figure.add_hline(1.0)
    figure.update_layout(
        barmode="group",
        xaxis={"title": "batch size", "type": "category"},
        yaxis={"title": _AXIS},
    )
    return str(figure.to_html(full_html=False, include_plotlyjs=True))


def _groups(
    record: Record,
) -> Iterator[tuple[str, list[tuple[int | None, SpeedUp]]]]:
    """Yield each method, and its speed-ups by batch size."""
    rows = summarized(record.job, record.samples)
    for method in record.job.methods:
        found = [*_speed_ups(row for row in rows if row.method == method)]
        if method != FLOAT32 and found:
            yield method, found


def _speed_ups(rows: Iterator[Row]) -> Iterator[tuple[int | None, SpeedUp]]:
    for row in rows:
        if row.speed_up is not None:
            yield row.batch, row.speed_up


def _error_bars(speed_ups: Sequence[SpeedUp]) -> tuple[list[float], list[float]]:
    """Return lengths below and above; a median may lie outside of its rounds."""
    below = [max(each.median - each.lowest, 0.0) for each in speed_ups]
    above = [max(each.highest - each.median, 0.0) for each in speed_ups]
    return below, above


def _label(batch: Any) -> str:
    return "as it is" if batch is None else str(batch)
