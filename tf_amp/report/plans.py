"""A plan as text, as tables that fold into a terminal, and on a page with charts."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table
from rich.text import Text

from grappler_pass.eligibility.exclusions import without_call_scopes
from grappler_pass.planning.plan import PlannedNode, planned_nodes, shape_text
from tf_amp.report import page
from tf_amp.report.display import bare_table, filled, plain_text
from tf_amp.report.page import Card, PageTable, Section, Tree

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Decision, Fusion, Plan

_T = TypeVar("_T")
FLOAT32_COLOR, LOW_COLOR, CAST_COLOR = "#8d99ae", "#2a9d8f", "#e9a23b"
_MILLI = 1e3
# Names of nodes in nested loops reach hundreds of characters; nothing is cut off.
_WIDTH = 4000
# Bars of a chart, and rows of a table on a page.
_BARS, _ROWS = 14, 40
# Of the longest bar, what a bar is shown from.
_SHOWN = 0.002
_TINY_SECONDS = 1e-12
_AXIS = "milliseconds per step"


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
    _Column("", "operation", lambda row: without_call_scopes(str(row.slot))),
    _Column("op", "op", lambda row: row.op),
    _Column("dtype", "type", lambda row: row.dtype),
    _Column("f32 ms", "float32 ms", lambda row: row.seconds_float32),
    _Column("16-bit ms", "16-bit ms", lambda row: row.seconds_low),
    _Column("cast ms", "casts ms", lambda row: row.cast_seconds),
    _Column("estimate", "", lambda row: f"{row.source}{_error_text(row)}" or "-"),
    _Column("shape", "", lambda row: shape_text(row.shape)),
    _Column("reason", "reason", lambda row: row.why),
)


def _error_text(row: Decision) -> str:
    return f" ± {row.error:.0%}" if row.error else ""


def _cells(
    where: str, plan: Plan, of_time: Callable[[float], _T]
) -> tuple[tuple[str, ...], tuple[tuple[str | _T, ...], ...]]:
    """Return the titles of the columns that are shown somewhere, and a plan's rows."""
    columns = [column for column in _COLUMNS if getattr(column, where)]

    def cell(value: str | float | None) -> str | _T:
        if value is None:
            return "-"
        return value if isinstance(value, str) else of_time(value)

    rows = (tuple(cell(c.value(row)) for c in columns) for row in plan.decisions)
    return tuple(getattr(column, where) for column in columns), tuple(rows)


def text_of(plan: Plan) -> str:
    """Return a plan as text: its summary, and a line per decision, nothing cut off."""
    titles, rows = _cells("in_text", plan, _milliseconds)
    numbers = [title for title in titles if title.endswith(" ms")]
    table = filled(bare_table(), titles, rows, numbers=numbers)
    fusions = plan.all_fusions
    parts = (
        plain_text(table, _WIDTH),
        plain_text(_fusions_table(fusions), _WIDTH) if fusions else "",
        plan.guessed,
    )
    return f"{plan.summary()}\n" + "\n\n".join(filter(None, parts))


def tables_of(plan: Plan) -> Group:
    """Return a plan for a terminal, folded to its width, op under type attribute."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("type attribute, op, shape", overflow="fold", ratio=5)
    table.add_column("dtype")
    table.add_column("f32 ms", justify="right")
    table.add_column("16 bits + casts", justify="right", max_width=10)
    table.add_column("reason", overflow="fold", ratio=4)
    for row in plan.decisions:
        low = _rounded(row.seconds_low)
        casts = "" if row.seconds_low is None else f" + {_rounded(row.cast_seconds)}"
        table.add_row(
            Text(f"{row.slot}\n {row.op} {shape_text(row.shape)}"),
            row.dtype,
            _rounded(row.seconds_float32),
            f"{low}{casts}",
            Text(row.why),
        )
    parts: list[Text | Table] = [Text(plan.summary(), overflow="fold"), table]
    if plan.all_fusions:
        parts.append(_fusions_table(plan.all_fusions))
    if plan.guessed:
        parts.append(Text(plan.guessed))
    return Group(*parts)


def _fusions_table(fusions: Iterable[Fusion]) -> Table:
    """Return a table of rewrites beside types, one row per rule and reason."""
    groups: dict[tuple[str, str], list[float]] = {}
    for fusion in fusions:
        groups.setdefault((fusion.rule, str(fusion.reason)), []).append(fusion.seconds)
    rows = (
        (rule, str(len(seconds)), _milliseconds(sum(seconds) or None), reason)
        for (rule, reason), seconds in groups.items()
    )
    return filled(bare_table(), ("rewrite", "times", "saves ms", "reason"), rows)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * _MILLI:.4f}"


def _rounded(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    milliseconds = seconds * _MILLI
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.2g}"


def page_of(plan: Plan) -> str:
    """Return a page with charts of a plan; MissingExtraError without what draws it."""
    title = f"Plan of {plan.graph or 'a graph'}"
    return page.page_from_sections(title, sections_of(plan))


def sections_of(plan: Plan, heading: str = "") -> tuple[Section, ...]:
    """Return all sections for one plan.

    Args:
      plan: of one graph.
      heading: before the title of each, where a page has several plans.

    Raises:
      MissingExtraError: plotly is not installed.
    """
    nodes = planned_nodes(plan.decisions)
    return (
        Section(f"{heading}Verdict", plan.verdict(), cards=_cards(plan, nodes)),
        Section(
            f"{heading}Where the time goes",
            "Model, layer, operation; width is milliseconds per step under the plan, "
            "color is the type. Click a scope to enter it, the top one to leave it, an "
            "operation for its reason, its cost, and patterns that keep it or its "
            "layer in float32.",
            tree=_tree(plan, nodes),
        ),
        Section(
            f"{heading}From float32 to the plan",
            "Milliseconds per step: what types gain by operation, what casts and "
            "rewrites beside types add to that. Bars show a standard deviation.",
            figure=_waterfall(plan, nodes) if plan.seconds_before else None,
        ),
        Section(
            f"{heading}What stays float32, and why",
            "Milliseconds per step by reason.",
            figure=_kept(nodes),
        ),
        Section(
            f"{heading}Most valuable decisions",
            "Gains first, then what takes longest in float32.",
            table=PageTable(*_cells("on_page", plan.top(_ROWS), short_milliseconds)),
        ),
        Section(
            f"{heading}Rewrites beside types",
            "What is fused, and what could be and is not.",
            table=_fusions(plan),
        ),
    )


def _cards(plan: Plan, nodes: Sequence[PlannedNode]) -> tuple[Card, ...]:
    seconds = sum(node.seconds for node in nodes)
    low = sum(node.seconds for node in nodes if node.main.is_low)
    low_nodes = sum(node.main.is_low for node in nodes)
    fused = Counter(f.rule for f in (*plan.fusions, *plan.traced_fusions))
    span = plan.speedup_range
    cards = [
        Card(
            "predicted speed-up",
            f"{plan.predicted_speedup:.2f}x",
            f"{plan.seconds_before * _MILLI:.3g} to {plan.seconds_after * _MILLI:.3g} "
            f"ms per step{span and f', {span}'}",
        ),
        Card(
            f"of the time in {plan.low_dtype}",
            f"{low / max(seconds, _TINY_SECONDS):.0%}",
            f"{low_nodes} of {len(nodes)} operations",
        ),
        Card("casts", str(plan.casts), f"{plan.casts_removed} removed"),
        Card("device", plan.profile or "no cost estimates", f"level {plan.opt_level}"),
    ]
    if fused:
        rules = ", ".join(f"{rule} {count}" for rule, count in fused.items())
        cards.append(Card("rewrites beside types", str(fused.total()), rules))
    return tuple(cards)


def _tree(plan: Plan, nodes: Sequence[PlannedNode]) -> Tree | None:
    timed = [node for node in nodes if node.seconds > 0.0]
    if not timed:
        return None
    scopes: dict[tuple[int, str], int] = {}
    types: dict[str, int] = {}
    reasons: dict[str, int] = {}
    prefixes: dict[str, int] = {}
    rows, details = [], []
    for node in timed:
        row, scope = node.main, -1
        for name in node.layer:
            scope = _number_in(scopes, (scope, name))
        rows.append(
            (
                scope,
                node.label,
                short_milliseconds(node.seconds_float32),
                short_milliseconds(node.seconds),
                _number_in(types, row.dtype),
                _number_in(reasons, row.why),
                _number_in(prefixes, node.prefix),
            )
        )
        shape = shape_text(row.shape)
        details.append(f"{row.op} {shape}, {row.source}{_error_text(row)}")
    return Tree(
        plan.graph or "graph",
        tuple(rows),
        tuple(scopes),
        tuple(types),
        tuple(reasons),
        tuple(prefixes),
        tuple(details),
    )


def _number_in(known: dict[_T, int], value: _T) -> int:
    """Return the number of a value, the same each time, of a new one the next."""
    return known.setdefault(value, len(known))


def short_milliseconds(seconds: float) -> float:
    """Return a time in milliseconds, rounded to three digits, for a page."""
    return float(f"{seconds * _MILLI:.3g}")


def _waterfall(plan: Plan, nodes: Iterable[PlannedNode]) -> Any:
    """Draw float32's step, what each op type takes off it, and the plan's step."""
    gains: dict[str, float] = defaultdict(float)
    variances: dict[str, float] = defaultdict(float)
    casts = 0.0
    for node in nodes:
        row = node.main
        casts += node.cast_seconds
        if row.is_low:
            gain = node.seconds_float32 + node.cast_seconds - node.seconds
            gains[row.op] += gain
            variances[row.op] += (row.error * node.seconds_float32) ** 2
    for fusion in plan.fusions:
        gains[f"rewrite {fusion.rule}"] += fusion.seconds
    ranked = sorted(gains, key=lambda name: -abs(gains[name]))
    rest = ranked[_BARS:]
    steps = [(n, -gains[n], math.sqrt(variances[n])) for n in ranked[:_BARS]]
    if rest:
        steps.append(("others", -sum(gains[name] for name in rest), 0.0))
    if casts:
        steps.append(("casts", casts, 0.0))
    # Each bar begins where the one before ends; the first and the last stand on zero.
    levels = itertools.accumulate(
        (change for _, change, _ in steps), initial=plan.seconds_before
    )
    last_color = FLOAT32_COLOR if plan.is_empty else LOW_COLOR
    bars = [
        ("float32", 0.0, plan.seconds_before, 0.0, FLOAT32_COLOR),
        *(
            (name, level, change, error, CAST_COLOR if change > 0.0 else LOW_COLOR)
            for (name, change, error), level in zip(steps, levels, strict=False)
        ),
        ("plan", 0.0, plan.seconds_after, plan.gain_error, last_color),
    ]
    names, bases, heights, errors, colors = zip(*bars, strict=True)
    figure = page.empty_figure(yaxis_title=_AXIS)
    figure.add_bar(
        x=names,
        y=list(map(short_milliseconds, heights)),
        base=list(map(short_milliseconds, bases)),
        error_y={"type": "data", "array": list(map(short_milliseconds, errors))},
        marker_color=colors,
        hovertemplate="%{x}: %{y:.3g} ms<extra></extra>",
    )
    return figure


def _kept(nodes: Iterable[PlannedNode]) -> Any:
    seconds: dict[str, float] = defaultdict(float)
    for node in nodes:
        if not node.main.is_low and node.seconds > 0.0:
            seconds[node.main.reason.cause.value] += node.seconds
    if not seconds:
        return None
    least = _SHOWN * max(seconds.values())
    shown = [why for why in seconds if seconds[why] >= least]
    ranked = sorted(shown, key=lambda why: -seconds[why])
    figure = page.empty_figure(
        height=80 + 34 * len(ranked), xaxis_title=_AXIS, yaxis_autorange="reversed"
    )
    figure.add_bar(
        y=ranked,
        x=[short_milliseconds(seconds[why]) for why in ranked],
        orientation="h",
        marker_color=FLOAT32_COLOR,
        hovertemplate="%{y}: %{x:.3g} ms<extra></extra>",
    )
    return figure


def _fusions(plan: Plan) -> PageTable | None:
    ranked = sorted(plan.all_fusions, key=lambda each: -each.seconds)
    rows = tuple(
        (
            each.rule,
            without_call_scopes(each.node),
            short_milliseconds(each.seconds) if each.seconds else "-",
            str(each.reason),
        )
        for each in ranked[:_ROWS]
    )
    columns = ("rewrite", "operation", "saves ms", "reason")
    return PageTable(columns, rows) if rows else None
