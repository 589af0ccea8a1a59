"""The chart of methods x batch sizes, as a PNG and on a page that needs no network."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from grappler_pass.planning.pages import page
from grappler_pass.planning.pages.page import Section, Table
from tf_amp.errors import MissingExtraError
from tf_amp.tools.bench.methods import FLOAT32
from tf_amp.tools.bench.record import Record
from tf_amp.tools.bench.rendering import words
from tf_amp.tools.bench.summary import SpeedUp

_WIDTH = 0.8
_READING = "Medians of all rounds; lines reach from the lowest to the highest round."


def check_extra() -> None:
    """Raise MissingExtraError unless charts can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed, which draws charts; to have it: "
            "pip install 'tf-amp[plots]'"
        ) from error


def png_of(record: Record) -> bytes:
    """Return the chart as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    drawn = [*groups(record)]
    width = _WIDTH / max(len(drawn), 1)
    batches = [*map(label, record.job.batches)]
    for number, (method, rows) in enumerate(drawn):
        offset = (number - (len(drawn) - 1) / 2) * width
        places = [batches.index(label(batch)) + offset for batch, _ in rows]
        heights = [each.median for _, each in rows]
        bars = error_bars([each for _, each in rows])
        axes.bar(places, heights, width, yerr=bars, capsize=2, label=method)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(batches)), batches)
    axes.set(
        xlabel="batch size",
        ylabel="speed-up over float32",
        title=words.title_of(record.job),
    )
    figure.legend(loc="outside lower center", ncols=max(len(drawn), 1))
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def groups(record: Record) -> Iterator[tuple[str, list[tuple[int | None, SpeedUp]]]]:
    """Yield each method, and its speed-ups by batch size."""
    for method in record.job.methods:
        found = [
            (row.batch, row.speed_up)
            for row in record.rows
            if row.method == method and row.speed_up is not None
        ]
        if method != FLOAT32 and found:
            yield method, found


def error_bars(speed_ups: Sequence[SpeedUp]) -> tuple[list[float], list[float]]:
    """Return lengths below and above; a median may lie outside of its rounds."""
    below = [max(each.median - each.lowest, 0.0) for each in speed_ups]
    above = [max(each.highest - each.median, 0.0) for each in speed_ups]
    return below, above


def label(batch: int | None) -> str:
    """Return what a batch size is called on an axis."""
    return "as it is" if batch is None else str(batch)


def page_of(record: Record) -> str:
    """Return the page of what was measured; MissingExtraError without what draws it."""
    # The first column of a page is the widest: the method before the batch.
    columns, *shown = (
        (method, batch, *others)
        for batch, method, *others in (words.TITLES, *map(words.cells, record.rows))
    )
    said = tuple((each,) for each in (*words.remarks(record), *words.advice(record)))
    sections = (
        Section("Speed-up over float32", _READING, figure=_figure(record)),
        Section("All figures", table=Table(columns, tuple(shown))),
        Section("Remarks", table=Table(("what the figures do not say",), said)),
    )
    return page.page_from_sections(
        f"{words.title_of(record.job)}: methods side by side",
        sections,
        "; ".join(words.context_lines(record)),
    )


def _figure(record: Record) -> Any:
    figure = page.empty_figure(height=420)
    for method, speed_ups in groups(record):
        below, above = error_bars([each for _, each in speed_ups])
        figure.add_bar(
            name=method,
            x=[label(batch) for batch, _ in speed_ups],
            y=[each.median for _, each in speed_ups],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": above,
                "arrayminus": below,
            },
        )
    figure.add_hline(1.0)
    figure.update_xaxes(title="batch size", type="category")
    figure.update_yaxes(title="speed-up")
    return figure
