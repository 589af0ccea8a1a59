"""A plan on a page: its verdict first, then where the time goes, and why."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from grappler_pass.eligibility.reasons import KEPT_FOR
from grappler_pass.planning.plan import PlannedNode, planned_nodes, shape_text
from tf_amp.report import page, plans
from tf_amp.report.page import (
    CAST_COLOR,
    CASTS,
    FLOAT32,
    FLOAT32_COLOR,
    LOW,
    LOW_COLOR,
    Bar,
    Bars,
    Card,
    PageTable,
    Section,
    Tree,
)
from tf_amp.report.plan_verdict import (
    Observed,
    low_share,
    next_steps,
    operations_in_words,
    verdict_of,
)

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Plan

_T = TypeVar("_T")
_MILLI = 1e3
_KIBI, _MEBI = 2**10, 2**20
# Bars of a chart, bars of layers, and rows of a table on a page.
_BARS, _LAYERS, _ROWS = 14, 7, 12
# Of the longest bar, what a bar is shown from.
_SHOWN = 0.002
# A share that is printed as 1%.
_LEAST_SHARE = 0.005
# Of the time in a scope, what operations directly in it have if it is a layer.
_OWN_SHARE = 0.1
# Of all layers, what a group that holds more is divided for, however many it holds.
_LARGE = 0.5
_AXIS = "ms per step"
_WORDS_OF_CAUSE = {c: words for words, causes in KEPT_FOR.items() for c in causes}
NOTHING_OBSERVED = Observed()


def page_of(plan: Plan) -> str:
    """Return a page with charts of a plan; MissingExtraError without what draws it."""
    title = f"Plan of {plan.graph or 'a graph'}"
    return page.page_from_sections(title, [section_of(plan)], page.written_here())


def section_of(
    plan: Plan,
    observed: Observed = NOTHING_OBSERVED,
    *,
    folded: str = "",
    is_brief: bool = False,
) -> Section:
    """Return the section for one plan.

    Args:
      plan: of one graph.
      observed: what is known of the graph beside it.
      folded: what is shown of it while it is folded; empty where it is open.
      is_brief: whether only what fits the first screen is open.

    Raises:
      MissingExtraError: plotly is not installed.
    """
    nodes = planned_nodes(plan.decisions)
    parts = tuple(_parts(plan, nodes))
    if is_brief:
        what = "where the time goes, reasons, decisions"
        parts = (Section("Details", folded=what, parts=parts),)
    return Section(
        title_of(plan),
        lead=verdict_of(plan, nodes, observed),
        cards=tuple(_cards(plan, nodes, observed)),
        beside=(
            (_layers(plan, nodes),),
            (
                _kept(nodes),
                Section("What to do next", items=next_steps(plan, nodes, observed)),
            ),
        ),
        parts=parts,
        folded=folded,
    )


def title_of(plan: Plan) -> str:
    """Return the name of a plan's graph as a heading."""
    name = plan.graph or "a graph"
    return name[0].upper() + name[1:] if " " in name else name


def _parts(plan: Plan, nodes: Sequence[PlannedNode]) -> Iterator[Section]:
    """Yield what stands below the first screen, but for what is empty."""
    if tree := _tree(plan, nodes):
        yield Section(
            "Where the time goes",
            "Model, layer, operation. The width is the time of a step under the plan. "
            "Click a scope to enter it, and the top one to leave it. A click on an "
            "operation shows its reason, its time, and patterns that keep it or its "
            "layer in float32. ∇ is a gradient.",
            tree=tree,
        )
    if plan.seconds_before and not plan.is_empty:
        yield Section(
            "From float32 to the plan",
            "What each kind of operation gains in 16 bits, and what fusions and casts "
            "add to that. The thin lines are standard deviations.",
            figure=_waterfall(plan, nodes),
        )
    if causes := _causes(nodes):
        yield Section("What stays float32, and why", bars=causes)
    if plan.decisions:
        # An operation may have several types; the first of them has its price.
        first = {row.slot.node: row for row in reversed(plan.decisions)}
        is_priced = plan.seconds_before > 0.0
        rows = [row for row in first.values() if row.seconds_float32 or not is_priced]
        rows.sort(key=lambda row: (-row.gain_seconds, -row.seconds_float32))
        cells = plans.cells_of("on_page", rows[:_ROWS], short_milliseconds)
        title = "Most valuable decisions"
        text = "What gains most comes first, then what takes longest in float32."
        if not any(row.is_low for row in plan.decisions):
            title = "What takes longest"
            text = "Each operation in float32, and what 16 bits would take if allowed."
        yield Section(title, text, table=PageTable(*cells))
    if fusions := _fusions(plan):
        yield Section(
            "Fusions", "What is fused, and what could be and is not.", table=fusions
        )
    yield Section("The plan in a few words", plan.verdict())


def _cards(
    plan: Plan, nodes: Sequence[PlannedNode], observed: Observed
) -> Iterator[Card]:
    if observed.ratio is not None:
        error = f"± {observed.error:.0%}, " if observed.error else ""
        how = f"{error}{observed.how}"
        if not observed.is_applied:
            how += "; float32 stays"
        yield Card("measured speed-up", f"{observed.ratio:.2f}x", how)
    if plan.seconds_before:
        before, after = (
            page.digits(seconds * _MILLI)
            for seconds in (plan.seconds_float32, plan.seconds_after)
        )
        if plan.is_empty and not plan.traced_fusions:
            yield Card("predicted step", f"{before} ms", "float32")
        else:
            span = plan.speedup_range or "float32, then the plan"
            speed = f"predicted speed-up {plan.predicted_speedup:.2f}x"
            yield Card("predicted step", f"{before} → {after} ms", f"{speed}, {span}")
    whose = "the" if observed.is_applied else "its plan's"
    yield Card(
        f"of {whose} time in {plan.low_dtype}",
        f"{low_share(nodes):.0%}",
        operations_in_words(plan, nodes),
    )
    if fused := Counter(f.rule for f in (*plan.fusions, *plan.traced_fusions)):
        rules = ", ".join(f"{rule} {count}" for rule, count in fused.items())
        yield Card("fusions", str(fused.total()), rules)
    if plan.peak_bytes_before:
        peaks = (plan.peak_bytes_before, plan.peak_bytes_after)
        unit, name = (_MEBI, "MiB") if max(peaks) >= _MEBI else (_KIBI, "KiB")
        before, after = (page.digits(size / unit) for size in peaks)
        sizes = before if before == after else f"{before} → {after}"
        held = page.digits(plan.held_bytes / unit)
        parts = f"at once; {held} {name} of it variables and inputs"
        yield Card("predicted memory", f"{sizes} {name}", parts)


def _layers(plan: Plan, nodes: Sequence[PlannedNode]) -> Section:
    """Return bars of the largest layers, in float32 and under the plan."""
    title = "Float32 against the plan, by layer"
    timed = [node for node in nodes if node.seconds > 0 or node.seconds_float32 > 0]
    if not timed:
        return Section(title, missing="No operation has a predicted time.")
    groups, what = _by_layer(timed), "layer"
    if len(groups) == 1 and not timed[0].layer:
        groups = defaultdict(list)
        for node in timed:
            groups[node.main.op].append(node)
        title, what = "Float32 against the plan, by operation", "operation"
    ranked = sorted(groups, key=lambda name: -_longer_seconds(groups[name]))
    shown, rest = ranked[:_LAYERS], ranked[_LAYERS:]
    if len(rest) == 1:
        shown, rest = ranked, []
    largest = {name: groups[name] for name in shown}
    if rest:
        largest[f"{len(rest)} others"] = [n for name in rest for n in groups[name]]
    is_changed = any(node.main.is_low for node in timed)
    kinds = {LOW: plan.low_dtype, FLOAT32: "float32", CASTS: "casts"}
    if not is_changed:
        title, kinds = f"Time in float32, by {what}", {FLOAT32: "float32"}
    bars = tuple(
        (name, _bars_of(inner, is_changed=is_changed))
        for name, inner in largest.items()
    )
    where = f"{plan.profile or 'this device'} at level {plan.opt_level}"
    text = f"Times of a step on {where}, as predicted."
    if saved := plan.seconds_float32 - plan.seconds_fused:
        milliseconds = page.digits(saved * _MILLI)
        text += f" The fusions, which save {milliseconds} ms, are in all bars."
    if plan.host_bound:
        text += " Bars are without what it takes to start operations, the bound here."
    return Section(title, text, bars=Bars(what, "ms", kinds, bars))


def _bars_of(nodes: Sequence[PlannedNode], *, is_changed: bool) -> tuple[Bar, ...]:
    float32 = sum(node.seconds_float32 for node in nodes) * _MILLI
    if not is_changed:
        return (Bar("", ((FLOAT32, float32),)),)
    pieces = {LOW: 0.0, FLOAT32: 0.0, CASTS: 0.0}
    for node in nodes:
        pieces[LOW if node.main.is_low else FLOAT32] += node.seconds - node.cast_seconds
        pieces[CASTS] += node.cast_seconds
    planned = tuple((kind, seconds * _MILLI) for kind, seconds in pieces.items())
    return Bar("float32", ((FLOAT32, float32),)), Bar("plan", planned)


def _longer_seconds(nodes: Iterable[PlannedNode]) -> float:
    return sum(max(node.seconds_float32, node.seconds) for node in nodes)


def _by_layer(nodes: Sequence[PlannedNode]) -> dict[str, list[PlannedNode]]:
    """Return nodes by their layers, small layers of similar names together.

    Names are divided at "/" and "_", the group that takes longest first, while there
    is room: conv4_block1_1_conv and conv4_block2_1_conv are "conv4_…" until then.
    """
    words = {}
    for node in nodes:
        name = plans.own_names("".join(f"{scope}/" for scope in node.layer))
        words[id(node)] = tuple(re.findall(r"[^/_]*[/_]", name))
    groups: dict[tuple[str, ...], list[PlannedNode]] = {(): list(nodes)}
    total = _longer_seconds(nodes)
    is_divided = True
    while is_divided:
        is_divided = False
        for begin in sorted(groups, key=lambda name: -_longer_seconds(groups[name])):
            parts: dict[tuple[str, ...], list[PlannedNode]] = defaultdict(list)
            for node in groups[begin]:
                parts[words[id(node)][: len(begin) + 1]].append(node)
            is_scope = "".join(begin)[-1:] == "/"
            own, whole = map(_longer_seconds, (parts.get(begin, ()), groups[begin]))
            # A layer, rather than a model or a block of layers.
            if parts.keys() == {begin} or (is_scope and own > _OWN_SHARE * whole):
                continue
            is_part_of_name = len(parts) == 1 and not is_scope
            has_room = len(groups) - 1 + len(parts) <= _LAYERS and len(parts) > 1
            if whole > _LARGE * total or is_part_of_name or has_room:
                del groups[begin]
                groups.update(parts)
                is_divided = True
                break
    return {_group_name("".join(begin)): inner for begin, inner in groups.items()}


def _group_name(begin: str) -> str:
    return f"{begin}…" if begin[-1:] == "_" else begin[:-1] or "outside of layers"


def _kept(nodes: Sequence[PlannedNode]) -> Section:
    """Return what keeps the rest in float32, in a few words each."""
    seconds = _float32_seconds(
        (node, _WORDS_OF_CAUSE.get(node.main.reason.cause, "other reasons"))
        for node in nodes
    )
    title = "What keeps the rest in float32"
    if not seconds:
        return Section(title, "Nothing that takes time stays float32.")
    return Section(title, bars=_reasons(seconds, sum(node.seconds for node in nodes)))


def _causes(nodes: Sequence[PlannedNode]) -> Bars | None:
    seconds = _float32_seconds((node, node.main.reason.cause.value) for node in nodes)
    return _reasons(seconds, sum(n.seconds for n in nodes)) if seconds else None


def _float32_seconds(
    nodes: Iterable[tuple[PlannedNode, str]],
) -> Mapping[str, float]:
    """Add up the time of what stays float32 by its reason."""
    seconds: dict[str, float] = defaultdict(float)
    for node, why in nodes:
        if not node.main.is_low and node.seconds > 0.0:
            seconds[why] += node.seconds
    return seconds


def _reasons(seconds: Mapping[str, float], total: float) -> Bars:
    least = _SHOWN * max(seconds.values())
    ranked = sorted(seconds, key=lambda why: -seconds[why])
    groups = tuple(
        (
            why,
            (
                Bar(
                    "",
                    ((FLOAT32, seconds[why] * _MILLI),),
                    f", {_share(seconds[why] / total)}",
                ),
            ),
        )
        for why in ranked
        if seconds[why] >= least
    )
    return Bars("reason", "ms", {FLOAT32: "float32"}, groups)


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= _LEAST_SHARE else "<1%"


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
                _number_in(reasons, plans.own_names(row.why)),
                _number_in(prefixes, node.prefix),
            )
        )
        shape = shape_text(row.shape)
        details.append(f"{row.op} {shape}, {row.source}{plans.error_text(row)}")
    return Tree(
        title_of(plan).replace("`", ""),
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
    for fusion in (*plan.fusions, *plan.traced_fusions):
        gains[f"fusion {fusion.rule}"] += fusion.seconds
    least = _SHOWN * plan.seconds_before
    ranked = sorted(gains, key=lambda name: -abs(gains[name]))
    shown = [name for name in ranked[:_BARS] if abs(gains[name]) >= least]
    rest = ranked[len(shown) :]
    steps = [(n, -gains[n], math.sqrt(variances[n])) for n in shown]
    of_rest = sum(gains[name] for name in rest)
    if abs(of_rest) >= least:
        steps.append(("others", -of_rest, 0.0))
    if casts:
        steps.append(("casts", casts, 0.0))
    # Each bar begins where the one before ends; the first and the last stand on zero.
    levels = itertools.accumulate(
        (change for _, change, _ in steps), initial=plan.seconds_float32
    )
    bars = [
        ("float32", 0.0, plan.seconds_float32, 0.0, FLOAT32_COLOR),
        *(
            (name, level, change, error, CAST_COLOR if change > 0.0 else LOW_COLOR)
            for (name, change, error), level in zip(steps, levels, strict=False)
        ),
        ("plan", 0.0, plan.seconds_after, plan.gain_error, LOW_COLOR),
    ]
    names, bases, heights, errors, colors = zip(*bars, strict=True)
    changes = list(map(short_milliseconds, heights))
    signs = ["", *("+" for _ in steps), ""]
    texts = [
        f"{name}  {change:{sign}.3g} ms"
        for name, sign, change in zip(names, signs, changes, strict=True)
    ]
    figure = page.empty_figure(height=70 + 27 * len(names), xaxis_title=_AXIS)
    figure.update_yaxes(autorange="reversed", tickvals=names, ticktext=texts)
    figure.add_bar(
        y=names,
        x=changes,
        base=list(map(short_milliseconds, bases)),
        orientation="h",
        error_x={"type": "data", "array": list(map(short_milliseconds, errors))},
        marker=page.marker_of(colors),
        hovertemplate="%{y}: %{x:.3g} ms<extra></extra>",
    )
    return figure


def _fusions(plan: Plan) -> PageTable | None:
    ranked = sorted(plan.all_fusions, key=lambda each: -each.seconds)
    rows = tuple(
        (
            each.rule,
            plans.own_names(each.node),
            short_milliseconds(each.seconds) if each.seconds else "-",
            str(each.reason),
        )
        for each in ranked[:_ROWS]
    )
    columns = ("fusion", "operation", "saves ms", "reason")
    return PageTable(columns, rows) if rows else None
