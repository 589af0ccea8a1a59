"""What a page shows of one plan: its verdict, and where its milliseconds are."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from grappler_pass.eligibility.exclusions import without_call_scopes
from grappler_pass.planning.layers import PlannedNode, planned_nodes
from grappler_pass.planning.pages import page
from grappler_pass.planning.pages.page import Card, Section, Table, Tree
from grappler_pass.planning.plan_table import shape_text

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Decision, Plan

FLOAT32_COLOR, LOW_COLOR, CAST_COLOR = "#8d99ae", "#2a9d8f", "#e9a23b"
_MILLI = 1e3
# Bars of a chart, and rows of a table.
_BARS, _ROWS = 14, 40
# Of the longest bar, what a bar is shown from.
_SHOWN = 0.002
_TINY_SECONDS = 1e-12


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
            table=_table(plan),
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
    scopes, types, reasons, prefixes = _Numbers(), _Numbers(), _Numbers(), _Numbers()
    rows = []
    for node in timed:
        scope = -1
        for name in node.layer:
            scope = scopes.of((scope, name))
        rows.append(
            (
                scope,
                node.label,
                _short(node.seconds_float32 * _MILLI),
                _short(node.seconds * _MILLI),
                types.of(node.main.dtype),
                reasons.of(node.main.why),
                prefixes.of(node.prefix),
            )
        )
    return Tree(
        plan.graph or "graph",
        tuple(rows),
        scopes.known,
        types.known,
        reasons.known,
        prefixes.known,
        tuple(_detail(node.main) for node in timed),
    )


class _Numbers:
    """Gives each thing a number, the same at each time."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, thing: Any) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    @property
    def known(self) -> tuple[Any, ...]:
        return tuple(self._numbers)


def _detail(row: Decision) -> str:
    error = f" ± {row.error:.0%}" if row.error else ""
    return f"{row.op} {shape_text(row.shape)}, {row.source}{error}"


def _short(value: float) -> float:
    return float(f"{value:.3g}")


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
    return _waterfall_figure(plan, steps)


def _waterfall_figure(plan: Plan, steps: list[tuple[str, float, float]]) -> Any:
    bases, level = [0.0], plan.seconds_before
    for _, change, _ in steps:
        bases.append(level)
        level += change
    names = ["float32", *(name for name, _, _ in steps), "plan"]
    heights = [plan.seconds_before, *(c for _, c, _ in steps), plan.seconds_after]
    errors = [0.0, *(error for _, _, error in steps), plan.gain_error]
    colors = [
        FLOAT32_COLOR,
        *(CAST_COLOR if change > 0.0 else LOW_COLOR for _, change, _ in steps),
        FLOAT32_COLOR if plan.is_empty else LOW_COLOR,
    ]
    figure = page.empty_figure()
    figure.add_bar(
        x=names,
        y=[_short(height * _MILLI) for height in heights],
        base=[_short(base * _MILLI) for base in (*bases, 0.0)],
        error_y={"type": "data", "array": [_short(e * _MILLI) for e in errors]},
        marker_color=colors,
        hovertemplate="%{x}: %{y:.3g} ms<extra></extra>",
    )
    figure.update_yaxes(title="milliseconds per step")
    return figure


def _kept(nodes: Iterable[PlannedNode]) -> Any:
    seconds: dict[str, float] = defaultdict(float)
    for node in nodes:
        if not node.main.is_low and node.seconds > 0.0:
            seconds[node.main.reason.cause.value] += node.seconds
    if not seconds:
        return None
    least = _SHOWN * max(seconds.values())
    ranked = sorted(
        (why for why in seconds if seconds[why] >= least), key=lambda why: -seconds[why]
    )
    figure = page.empty_figure(height=80 + 34 * len(ranked))
    figure.add_bar(
        y=ranked,
        x=[_short(seconds[why] * _MILLI) for why in ranked],
        orientation="h",
        marker_color=FLOAT32_COLOR,
        hovertemplate="%{y}: %{x:.3g} ms<extra></extra>",
    )
    figure.update_xaxes(title="milliseconds per step")
    figure.update_yaxes(autorange="reversed")
    return figure


def _table(plan: Plan) -> Table:
    rows = plan.sorted_by_value().decisions[:_ROWS]
    return Table(
        ("operation", "op", "type", "float32 ms", "16-bit ms", "casts ms", "reason"),
        tuple(
            (
                without_call_scopes(str(row.slot)),
                row.op,
                row.dtype,
                _short(row.seconds_float32 * _MILLI),
                "-" if row.seconds_low is None else _short(row.seconds_low * _MILLI),
                _short(row.cast_seconds * _MILLI),
                row.why,
            )
            for row in rows
        ),
    )


def _fusions(plan: Plan) -> Table | None:
    ranked = sorted(plan.all_fusions, key=lambda each: -each.seconds)
    rows = tuple(
        (
            each.rule,
            without_call_scopes(each.node),
            _short(each.seconds * _MILLI) if each.seconds else "-",
            str(each.reason),
        )
        for each in ranked[:_ROWS]
    )
    return Table(("rewrite", "operation", "saves ms", "reason"), rows) if rows else None
