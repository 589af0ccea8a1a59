"""The page: one file of HTML that needs no network."""

from __future__ import annotations

import importlib.resources

from tf_amp.tools.bench.chart import html_of
from tf_amp.tools.bench.record import Record
from tf_amp.tools.bench.summary import summarized
from tf_amp.tools.bench.words import TITLES, cells, context_lines, remarks, title_of

_TEMPLATE = "page.html.j2"


def page_of(record: Record) -> str:
    """Return the page of what was measured."""
    import jinja2

    text = importlib.resources.files(__package__).joinpath(_TEMPLATE).read_text()
    template = jinja2.Environment(autoescape=True).from_string(text)
    return template.render(
        title=title_of(record.job),
        titles=TITLES,
        rows=[cells(row) for row in summarized(record.job, record.samples)],
        remarks=remarks(record),
        context=context_lines(record),
        chart=html_of(record),
    )
