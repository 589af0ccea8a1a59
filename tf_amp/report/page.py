"""One page out of sections, with all that it needs inside.

Jinja2 writes it and plotly draws its charts; both belong to the extra `report`. Bars
of two or three kinds are HTML, so that they fit a narrow window, a dark one and paper.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import pathlib
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_amp.errors import MissingExtraError
from tf_amp.report.versions import versions_of

if TYPE_CHECKING:
    import jinja2
    import markupsafe

# Text on them is dark, and legible. What they mean is said by hatching, too.
FLOAT32_COLOR, LOW_COLOR, CAST_COLOR = "#b3bdcd", "#3fb8a8", "#f0b04c"
BAD_COLOR = "#d9534a"
_EDGES = {FLOAT32_COLOR: "#56647a", LOW_COLOR: "#0d6b60", CAST_COLOR: "#8a5a00"}
_HATCHES = {FLOAT32_COLOR: "\\", LOW_COLOR: "", CAST_COLOR: "|"}
# Kinds of bars, as the style sheet calls them.
FLOAT32, LOW, CASTS = "float32", "low", "casts"
_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras")
_NUMBER = re.compile(r"-?(\d[\d,]*(\.\d+)?(e[+-]?\d+)?|inf|nan)")
_CODE = re.compile(r"`([^`]+)`")


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
    """Rows of text under their names; columns of numbers are set to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]

    def has_numbers(self, column: int) -> bool:
        """Return whether a column holds numbers, or "-" in their place."""
        cells = {str(row[column]) for row in self.rows} - {"-"}
        return bool(cells) and all(map(_NUMBER.fullmatch, cells))

    def without(self, title: str) -> PageTable:
        """Return the table without a column."""
        place = self.columns.index(title)
        rows = ((*row[:place], *row[place + 1 :]) for row in self.rows)
        columns = (*self.columns[:place], *self.columns[place + 1 :])
        return PageTable(columns, tuple(rows))


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar of several kinds of pieces, one behind the other.

    Attributes:
      name: beside the bar; empty where its group has no other.
      pieces: the kind and the value of each.
      note: behind the sum of the pieces.
    """

    name: str
    pieces: tuple[tuple[str, float], ...]
    note: str = ""

    @property
    def total(self) -> float:
        """Return the sum of the pieces."""
        return sum(value for _, value in self.pieces)


@dataclasses.dataclass(frozen=True)
class Bars:
    """Horizontal bars in groups.

    Attributes:
      title: what the groups are.
      unit: of the values.
      kinds: what each kind of piece means, in words.
      groups: the label and the bars of each.
    """

    title: str
    unit: str
    kinds: Mapping[str, str]
    groups: tuple[tuple[str, tuple[Bar, ...]], ...]

    @property
    def has_names(self) -> bool:
        """Return whether bars have names beside them."""
        return any(bar.name for _, bars in self.groups for bar in bars)

    @property
    def longest(self) -> float:
        """Return the largest sum of pieces, which fills the width."""
        return max(bar.total for _, bars in self.groups for bar in bars)


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


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """A part of a page; what is empty is left out. `Text` in backticks is code.

    Attributes:
      title: its heading.
      lead: what it comes to, in large letters.
      text: a sentence or two on how to read it.
      missing: why there is nothing to see, and how to have it.
      cards: figures that stand out.
      beside: columns of sections, which stand side by side where there is room.
      bars: horizontal bars.
      figure: of plotly.
      tree: an icicle.
      items: a list of sentences.
      table: below all else of its own.
      parts: sections within it.
      folded: what is shown of it while it is folded; empty where it is open.
    """

    title: str
    text: str = ""
    lead: str = ""
    missing: str = ""
    cards: tuple[Card, ...] = ()
    beside: tuple[tuple[Section, ...], ...] = ()
    bars: Bars | None = None
    figure: Any = None
    tree: Tree | None = None
    items: tuple[str, ...] = ()
    table: PageTable | None = None
    parts: tuple[Section, ...] = ()
    folded: str = ""


def page_from_sections(
    title: str, sections: Sequence[Section], context: Iterable[str] = ()
) -> str:
    """Return a page as HTML, with lines of context below its title.

    Raises:
      MissingExtraError: Jinja2 or plotly is not installed.
    """
    template = check_extra()
    from plotly.offline import get_plotlyjs

    anchors = _anchors_of(sections)
    figures = {
        name: json.loads(section.figure.to_json())
        for section, name in anchors.items()
        if section.figure
    }
    trees = {
        name: dataclasses.asdict(section.tree)
        for section, name in anchors.items()
        if section.tree
    }
    first, *others = sections or [Section("")]
    return template.render(
        title=title,
        context=tuple(context),
        contents=(first, *first.parts, *others),
        sections=sections,
        anchor=anchors.__getitem__,
        figures=figures,
        trees=trees,
        colors={FLOAT32: FLOAT32_COLOR, LOW: LOW_COLOR},
        plotly=get_plotlyjs() if figures or trees else "",
    )


def _anchors_of(sections: Iterable[Section], within: str = "") -> dict[Section, str]:
    """Return a name for each section that no other has, parts included."""
    anchors: dict[Section, str] = {}
    for number, section in enumerate(sections):
        words = re.findall(r"\w+", section.title.lower())[:6]
        anchors[section] = "-".join((within or "s", str(number), *words))
        beside = (each for column in section.beside for each in column)
        inner = (*section.parts, *beside)
        anchors.update(_anchors_of(inner, anchors[section]))
    return anchors


def written_here() -> tuple[str, ...]:
    """Return lines that say when, where and with which versions a page is written."""
    now = datetime.datetime.now(datetime.timezone.utc)
    versions = (*versions_of(_PACKAGES), ("Python", platform.python_version()))
    return (
        f"written {now:%Y-%m-%d %H:%M} UTC on {platform.node() or 'an unnamed host'}",
        ", ".join(f"{name} {version}" for name, version in versions),
    )


def empty_figure(**layout: Any) -> Any:
    """Return a figure of plotly in the page's style, without data.

    A further layout goes before that of the page, whose own colors are added to both
    where it is shown.

    Raises:
      MissingExtraError: plotly is not installed.
    """
    check_extra()
    import plotly.graph_objects as charts

    figure = charts.Figure()
    figure.update_layout(
        template="plotly_white",
        colorway=["#8fa3c4", CAST_COLOR, "#6f93ad", LOW_COLOR, "#dd8079", "#a993b0"],
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        font={"family": "system-ui, sans-serif", "size": 13},
        xaxis={"automargin": True, "exponentformat": "power", "minexponent": 5},
        yaxis={"automargin": True, "exponentformat": "power", "minexponent": 5},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        # What is too small for its label has none.
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    figure.update_layout(**layout)
    return figure


def marker_of(colors: Sequence[str]) -> dict[str, Any]:
    """Return the marker of bars in some of the page's colors, hatched by their kind."""
    edges = [_EDGES[color] for color in colors]
    return {
        "color": list(colors),
        "line": {"color": edges, "width": 1},
        "pattern": {
            "shape": [_HATCHES[color] for color in colors],
            "fgcolor": edges,
            "size": 6,
            "solidity": 0.2,
        },
    }


def digits(value: str | int | float) -> str:
    """Return a number with three digits or all before the point; text unchanged."""
    if isinstance(value, (str, int)):
        return str(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"


@contextlib.contextmanager
def extra(name: str, drawn: str) -> Iterator[None]:
    """Say of what cannot be imported which extra brings it, by a MissingExtraError."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{error.name} is not installed, which draws {drawn}; in a copy of the "
            f"repository, pip install '.[{name}]' brings it"
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
    environment.filters.update(marked=_marked, digits=digits)
    return environment.get_template("page.html")


def _marked(text: str) -> markupsafe.Markup:
    """Return text for a page, with what is in backticks as code."""
    import markupsafe

    return markupsafe.Markup(
        _CODE.sub(r"<code>\1</code>", str(markupsafe.escape(text)))
    )
