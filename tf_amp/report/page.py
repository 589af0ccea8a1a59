"""One page out of sections, with all that it needs inside.

Jinja2 writes it and plotly draws its charts; both belong to the extra `report`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tf_amp.errors import MissingExtraError

if TYPE_CHECKING:
    import jinja2


@dataclasses.dataclass(frozen=True)
class Card:
    """A figure that stands out.

    Attributes:
      title: what it is.
      value: as text.
      note: a few words below it.
    """

    title: str
    value: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class PageTable:
    """Rows of text under their names; numbers are set to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]


@dataclasses.dataclass(frozen=True)
class Tree:
    """The data of an icicle: milliseconds of ops by their scopes.

    Attributes:
      title: of its root.
      nodes: per op its scope's number, name, milliseconds in float32 and now, number of
        its type, of its reason and of its prefix; small, since there are thousands.
      scopes: per scope the number of the one around it, -1 for none, and its name.
      types: names that numbers stand for, as are the next.
      reasons: see there.
      prefixes: of names in the graph.
      details: per op a line on shape and price.
    """

    title: str
    nodes: tuple[tuple[int, str, float, float, int, int, int], ...]
    scopes: tuple[tuple[int, str], ...]
    types: tuple[str, ...]
    reasons: tuple[str, ...]
    prefixes: tuple[str, ...]
    details: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page; what is empty is left out.

    Attributes:
      title: its heading.
      text: a sentence or two on how to read it.
      cards: figures that stand out.
      figure: of plotly.
      tree: an icicle.
      table: below all else.
      missing: why there is nothing to see, and how to have it.
    """

    title: str
    text: str = ""
    cards: tuple[Card, ...] = ()
    figure: Any = None
    tree: Tree | None = None
    table: PageTable | None = None
    missing: str = ""


def page_from_sections(title: str, sections: Sequence[Section], note: str = "") -> str:
    """Return a page as HTML, with a note below its title.

    Raises:
      MissingExtraError: Jinja2 or plotly is not installed.
    """
    template = check_extra()
    from plotly.offline import get_plotlyjs

    charted = any(section.figure or section.tree for section in sections)
    return template.render(
        title=title,
        note=note,
        sections=sections,
        figures=[
            section.figure and json.loads(section.figure.to_json())
            for section in sections
        ],
        trees=[
            section.tree and dataclasses.asdict(section.tree) for section in sections
        ],
        plotly=get_plotlyjs() if charted else "",
    )


def empty_figure(**layout: Any) -> Any:
    """Return a figure of plotly in the page's style, without data.

    A further layout goes before that of the page.

    Raises:
      MissingExtraError: plotly is not installed.
    """
    check_extra()
    import plotly.graph_objects as charts

    figure = charts.Figure()
    figure.update_layout(
        template="plotly_white",
        colorway=["#8d99ae", "#e9a23b", "#577590", "#2a9d8f", "#c1443c", "#6d597a"],
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        font={"family": "system-ui, sans-serif", "size": 13},
        xaxis={"automargin": True, "exponentformat": "power", "minexponent": 5},
        yaxis={"automargin": True, "exponentformat": "power", "minexponent": 5},
        legend={"orientation": "h", "y": 1.1},
    )
    figure.update_layout(**layout)
    return figure


@contextlib.contextmanager
def extra(name: str, drawn: str) -> Iterator[None]:
    """Say of what cannot be imported which extra brings it, by a MissingExtraError."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed, which draws {drawn}; to have it: "
            f"pip install 'tf-amp[{name}]'"
        ) from error


@functools.cache
def check_extra() -> jinja2.Template:
    """See that pages can be written, and return what they are filled in.

    Raises:
      MissingExtraError: Jinja2 or plotly is not installed.
    """
    with extra("report", "reports"):
        import jinja2
        import plotly  # noqa: F401
    loader = jinja2.FileSystemLoader(pathlib.Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html")
