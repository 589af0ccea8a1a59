"""The page: one file of HTML that needs no network."""

from __future__ import annotations

from typing import Any

from grappler_pass.planning.pages import page
from grappler_pass.planning.pages.page import Section, Table
from tf_amp.tools.bench.record import Record
from tf_amp.tools.bench.rendering.chart import error_bars, groups, label
from tf_amp.tools.bench.rendering.words import (
    TITLES,
    advice,
    cells,
    context_lines,
    remarks,
    title_of,
)
from tf_amp.tools.bench.summary import summarized

_READING = "Medians of all rounds; lines reach from the lowest to the highest round."


def page_of(record: Record) -> str:
    """Return the page of what was measured.

    Raises:
      MissingExtraError: Jinja2 or plotly is not installed.
    """
    rows = summarized(record.job, record.samples)
    # The first column of a page is the widest.
    columns, *shown = (_method_first(each) for each in (TITLES, *map(cells, rows)))
    said = tuple((each,) for each in (*remarks(record), *advice(record)))
    sections = (
        Section("Speed-up over float32", _READING, figure=_figure(record)),
        Section("All figures", table=Table(columns, tuple(shown))),
        Section("Remarks", table=Table(("what the figures do not say",), said)),
    )
    return page.page_from_sections(
        f"{title_of(record.job)}: methods side by side",
        sections,
        "; ".join(context_lines(record)),
    )


def _method_first(row: tuple[str, ...]) -> tuple[str, ...]:
    batch, method, *others = row
    return (method, batch, *others)


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
