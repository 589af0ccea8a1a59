"""A plan as text, and as tables that fold into a terminal."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from grappler_pass.eligibility.exclusions import without_call_scopes
from grappler_pass.eligibility.reasons import DECIDED
from grappler_pass.planning.plan import PlannedNode, planned_nodes, shape_text
from tf_amp.report.counts import counted
from tf_amp.report.display import (
    bare_table,
    end_of_name,
    filled,
    markdown_table,
    plain_text,
)

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Decision, Fusion, Plan

_T = TypeVar("_T")
_MILLI = 1e3
# Names of nodes in nested loops reach hundreds of characters; nothing is cut off.
_WIDTH = 4000
# Columns that a folded cell has at least.
_NARROW = 20
# Ops that are named of a reason none of whose operations is listed.
_KINDS = 3
# Characters of a name where not all operations are listed.
_LONGEST_NAME = 60
# Of the time, from what on a reason has a row of its own.
_LEAST_SHARE = 0.005


# Of a branch or a loop, TensorFlow's scopes within its own, which may come again.
_BRANCH = re.compile(r"([^/]+)/(?:then|else|cond|body)/_\d+/(?:\1/)?")
# What tf-amp puts before the names of its own scopes.
_OWN = re.compile(r"(?:(?<=/)|^)tf_amp_([^/]*)")


class _Column(NamedTuple):
    """A figure of each operation, as text and on a page.

    Attributes:
      in_text: its title in the text of a plan; empty where it is not shown.
      on_page: its title in the table of a page, likewise.
      value: returns text for a decision, or a time: seconds, None where there is none.
    """

    in_text: str
    on_page: str
    value: Callable[[Decision], str | float | None]


_COLUMNS = (
    _Column("type attribute", "", lambda row: str(row.slot)),
    _Column("", "operation", lambda row: _shown_name(row.slot.node)),
    _Column("op", "op", lambda row: row.op),
    _Column("dtype", "type", lambda row: row.dtype),
    _Column("f32 ms", "float32 ms", lambda row: row.seconds_float32),
    _Column("16-bit ms", "16-bit ms", lambda row: row.seconds_low),
    _Column("cast ms", "casts ms", lambda row: row.cast_seconds),
    _Column("estimate", "", lambda row: f"{row.source}{error_text(row)}" or "-"),
    _Column("shape", "", lambda row: shape_text(row.shape)),
    _Column("reason", "", lambda row: row.why),
    _Column("", "reason", lambda row: own_names(row.why)),
)


def _shown_name(name: str) -> str:
    return end_of_name(own_names(name), _LONGEST_NAME)


def error_text(row: Decision) -> str:
    """Return how far a price may be off, behind a space; "" where that is not known."""
    return f" ± {row.error:.0%}" if row.error else ""


def own_names(name: str) -> str:
    """Return a name for people, or a text with names in it.

    Scopes of inlined calls are left out, those of tf-amp in words, and branches have no
    numbers.
    """
    short = _BRANCH.sub(r"\1/", without_call_scopes(name))
    return _OWN.sub(lambda found: f"tf-amp: {found[1].replace('_', ' ')}", short)


def cells_of(
    where: str, decisions: Iterable[Decision], of_time: Callable[[float], _T]
) -> tuple[tuple[str, ...], tuple[tuple[str | _T, ...], ...]]:
    """Return the titles of the columns that are shown somewhere, and rows."""
    columns = [column for column in _COLUMNS if getattr(column, where)]

    def cell(value: str | float | None) -> str | _T:
        if value is None:
            return "-"
        return value if isinstance(value, str) else of_time(value)

    rows = (tuple(cell(c.value(row)) for c in columns) for row in decisions)
    return tuple(getattr(column, where) for column in columns), tuple(rows)


def text_of(plan: Plan) -> str:
    """Return a plan as text: its summary, and a line per decision, nothing cut off."""
    titles, rows = cells_of("in_text", plan.decisions, _milliseconds)
    numbers = [title for title in titles if title.endswith(" ms")]
    table = filled(bare_table(), titles, rows, numbers=numbers)
    fusions = plan.all_fusions
    parts = (
        plain_text(_fusions_table(fusions), _WIDTH) if fusions else "",
        plain_text(table, _WIDTH),
        plan.guessed,
    )
    return f"{plan.summary()}\n" + "\n\n".join(filter(None, parts))


def markdown_of(plan: Plan, count: int) -> str:
    """Return a plan in Markdown: its summary, and its most valuable decisions."""
    titles, rows = cells_of("on_page", plan.top(count).decisions, _rounded)
    numbers = [title for title in titles if title.endswith(" ms")]
    return f"{plan.verdict()}\n\n{markdown_table(titles, rows, numbers)}"


def layers_in_markdown(plan: Plan, count: int) -> str:
    """Return a table in Markdown of the layers that take longest, and their types."""
    low = f"in {plan.low_dtype}"
    titles = ("layer, forward and backward", "float32 ms", "planned ms", low)
    rows = [
        (
            layer.name or "in no layer",
            _rounded(layer.seconds_float32),
            _rounded(layer.seconds),
            f"{layer.low_seconds / layer.seconds:.0%}" if layer.seconds else "-",
        )
        for layer in plan.by_layer()[:count]
    ]
    return markdown_table(titles, rows, titles[1:])


def tables_of(plan: Plan, count: int | None = None) -> Group:
    """Return a plan for a terminal: its summary, its fusions, what is in which type.

    Args:
      plan: the whole of it, or a selection.
      count: how many operations are listed, those first that gain or take most; of the
        others the table has sums. None: all are.
    """
    nodes = planned_nodes(plan.decisions)
    parts: list[Text | Table] = [Text(plan.summary(), overflow="fold")]
    if plan.all_fusions:
        parts += [Text(), _fusions_table(plan.all_fusions)]
    if nodes:
        parts += [Text(), _operations_table(nodes, count)]
    notes = []
    if nodes and plan.seconds_before:
        notes.append("Times are predicted for a machine that runs nothing else.")
    if count is not None and count < len(nodes):
        listed = f"{count} of {len(nodes)} operations are listed"
        notes.append(f"{listed}; --top N lists more, --top 0 all.")
    if notes:
        parts += [Text(), Text(" ".join(notes))]
    if plan.guessed:
        parts += [Text(), Text(plan.guessed)]
    return Group(*parts)


class _AtSlashes(textwrap.TextWrapper):
    """Folds at spaces, and behind the slashes of names."""

    wordsep_re = re.compile(r"(\s+|(?<=/))")


@dataclasses.dataclass(frozen=True)
class _Folded:
    """A cell that is folded at spaces and slashes, its further lines indented."""

    text: str
    indent: int = 0

    def __str__(self) -> str:
        """Return it on one line."""
        return self.text

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        """Ask for as much room as there is."""
        most = min(self.indent + len(self.text), options.max_width)
        return Measurement(min(most, _NARROW), most)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Fill the lines."""
        first, others = " " * self.indent, " " * (self.indent + 2)
        wrapper = _AtSlashes(
            options.max_width, initial_indent=first, subsequent_indent=others
        )
        yield from map(Text, wrapper.wrap(self.text))


def _operations_table(nodes: Sequence[PlannedNode], count: int | None) -> Table:
    """Return a table of operations by type and reason, each reason with its sums."""
    ranked = sorted(nodes, key=_at_stake, reverse=True)
    listed = {node.name for node in ranked[:count]}
    ops = {node.name: node.main.op for node in nodes}
    groups: dict[tuple[bool, str, str], list[PlannedNode]] = {}
    for node in ranked:
        row = node.main
        key = (not row.is_low, row.dtype, row.reason.cause.value)
        groups.setdefault(key, []).append(node)
    least = _LEAST_SHARE * sum(node.seconds for node in nodes)
    small = [
        key
        for key, inner in groups.items()
        if sum(node.seconds for node in inner) < least
        and not any(node.name in listed for node in inner)
    ]
    table = Table(box=None, pad_edge=False, header_style="", padding=(0, 1))
    for title in ("f32 ms", "16-bit ms", "cast ms"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("type, reason, operations")
    large = groups.keys() - small
    for key in sorted(large, key=lambda key: (key[0], -_seconds(groups[key]), key)):
        inner, (_, dtype, why) = groups[key], key
        shown = [node for node in inner if node.name in listed]
        said = f"{dtype}, {counted(len(inner), 'operation')}"
        if not shown:
            kinds = list(dict.fromkeys(node.main.op for node in inner))
            said += f" such as {', '.join(kinds[:_KINDS])}"
        table.add_row(*_times(inner), _Folded(f"{said}: {why}"), style="bold")
        for node in shown:
            name = without_call_scopes(node.name)
            if count is not None:
                name = end_of_name(name, _LONGEST_NAME)
            table.add_row(*_times([node]), _Folded(_operation(node, name, ops), 2))
    if others := [node for key in small for node in groups[key]]:
        said = f"{counted(len(others), 'operation')} for other reasons"
        table.add_row(*_times(others), _Folded(said), style="bold")
    return table


def _at_stake(node: PlannedNode) -> float:
    """Return what a node gains or loses in 16 bits, or else takes in float32."""
    row = node.main
    gain = node.seconds_float32 - node.seconds
    return abs(gain) if row.is_low else node.seconds_float32


def _seconds(nodes: Iterable[PlannedNode]) -> float:
    return sum(node.seconds_float32 for node in nodes)


def _times(nodes: Sequence[PlannedNode]) -> tuple[str, str, str]:
    """Return the times of nodes in float32, in 16 bits, and of the casts they need."""
    low = [node.seconds_low for node in nodes]
    known = None if None in low else sum(each or 0.0 for each in low)
    is_low = any(node.main.is_low for node in nodes)
    casts = sum(node.cast_seconds for node in nodes) if is_low else None
    return _rounded(_seconds(nodes)), _rounded(known), _rounded(casts)


def _operation(node: PlannedNode, name: str, ops: Mapping[str, str]) -> str:
    """Return what a node computes, its name, and what is particular to its reason.

    Of another node that is the reason, the op is enough.
    """
    row = node.main
    cause, detail = row.reason
    text = f"{row.op} {shape_text(row.shape)} {name}"
    if cause in DECIDED:
        # Where the costs decided, the detail tells of lists; a figure may have decided.
        return f"{text}{row.figure}"
    return (
        f"{text}: {ops.get(detail, detail)}" if detail not in ("", node.name) else text
    )


def _fusions_table(fusions: Iterable[Fusion]) -> Table:
    """Return a table of fusions, one row per rule and reason."""
    groups: dict[tuple[str, str], list[float]] = {}
    for fusion in fusions:
        groups.setdefault((fusion.rule, str(fusion.reason)), []).append(fusion.seconds)
    rows = (
        (rule, str(len(seconds)), _rounded(sum(seconds) or None), reason)
        for (rule, reason), seconds in groups.items()
    )
    numbers = ("times", "saves ms")
    return filled(bare_table(), ("fusion", *numbers, "reason"), rows, numbers=numbers)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * _MILLI:.4f}"


def _rounded(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    milliseconds = seconds * _MILLI
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.2g}"
