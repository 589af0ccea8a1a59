"""Run a graph as it is and rewritten, beside what was predicted of both.

Runs happen in a sandbox: variables, data sets and files of the program stay as they
are. Whole steps are run in turn; ops are timed by TensorFlow's own records.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from grappler_pass import pipeline
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Draft, Outcome, Settings, Stake, Trial
from grappler_pass.planning.trying import trial_from_draft
from grappler_pass.rewriting.apply import CAST_STEM
from tf_amp.errors import NotMeasurableError
from tf_amp.measuring.sandbox.graph_copy import SOURCE, WAIT, NotRunnableError
from tf_amp.measuring.sandbox.node_times import node_seconds
from tf_amp.tools.explain.prediction import ADDED_CASTS, OpTimes, Prediction, Times
from tf_amp.tools.explain.sandbox_steps import AFTER, BEFORE, measure, sandboxes_of

# Steps of each kind there should be time for.
_STEPS = 12
_SECONDS = 10.0
# Behind the name of a node, before that of a part it was split into.
_PART = "/tf_amp_"


def prediction_of(
    graph_def: Any, item: Item, settings: Settings, shapes: Shapes, name: str
) -> Prediction:
    """Plan a graph as Grappler passes it, run it both ways, and return the times."""
    drafts: list[Draft] = []
    pipeline.plan_graph(
        graph_def,
        item,
        dataclasses.replace(settings, tuner=_Lenient()),
        shapes=lambda: shapes,
        name=name,
        observer=lambda stage, draft, seconds: drafts.append(draft),
    )
    draft = drafts[-1]
    trial = trial_from_draft(dataclasses.replace(draft, shapes=shapes))
    try:
        return _measured(draft, trial)
    except NotRunnableError as error:
        raise NotMeasurableError(
            f"{name or 'The graph'} cannot be run: {error}."
        ) from error


class _Lenient:
    """Withdraws no plan: what steps might withdraw is to be seen measured."""

    def measure(self, stakes: Sequence[Stake], low_dtype: str) -> bool:
        return False

    def outcome(self, trial: Trial, decided: Callable[[bool], None]) -> Outcome:
        return Outcome.FASTER


def _measured(draft: Draft, trial: Trial) -> Prediction:
    both = trial.seconds_before + trial.seconds_after
    seconds = max(_SECONDS, _STEPS * both)
    compared = measure(trial, seconds)
    nodes = node_seconds(sandboxes_of(trial), seconds)
    plan = dataclasses.replace(draft.plan, outcome="")
    before = after = compared.seconds_before
    if not plan.is_empty:
        # The ratio of neighboring runs is surer than either time.
        after /= compared.ratio
    return Prediction(
        plan=plan,
        float32=Times(plan.seconds_before, before),
        mixed=Times(plan.seconds_after, after),
        ops=_op_times(draft, nodes[BEFORE], nodes[AFTER]),
        speedup_error=compared.error,
        pairs=len(compared.pairs),
    )


def _op_times(
    draft: Draft, before: Mapping[str, float], after: Mapping[str, float]
) -> tuple[OpTimes, ...]:
    op_of = {node.name: node.op for node in draft.view.nodes}
    counts = Counter(op_of.values())
    if draft.plan.casts:
        counts[ADDED_CASTS] = draft.plan.casts
    predicted32, predicted16 = _predicted(draft)
    measured32 = _by_op(before.items(), op_of)
    measured16 = _by_op(after.items(), op_of)
    rows: dict[OpTimes, float] = {}
    for op, count in counts.items():
        float32 = Times(predicted32.get(op, 0.0), measured32.get(op, 0.0))
        mixed = Times(predicted16.get(op, 0.0), measured16.get(op, 0.0))
        longest = max(*dataclasses.astuple(float32), *dataclasses.astuple(mixed))
        if longest > 0.0:
            rows[OpTimes(op, count, float32, mixed)] = longest
    return tuple(sorted(rows, key=lambda row: -rows[row]))


def _predicted(draft: Draft) -> tuple[dict[str, float], dict[str, float]]:
    """Return predicted seconds by op, of the graph as given and under the plan."""
    low_nodes = {draft.slots.node_of[s] for s, is_low in enumerate(draft.low) if is_low}
    float32: dict[str, float] = defaultdict(float)
    mixed: dict[str, float] = defaultdict(float)
    for node in draft.view.nodes:
        seconds = draft.prices.float32[node.index]
        low = draft.prices.low[node.index]
        is_low = node.index in low_nodes and low is not None
        float32[node.op] += seconds
        mixed[node.op] += low if is_low and low is not None else seconds
    beside = draft.plan.call_seconds + draft.prices.executor
    casts = draft.plan.seconds_after - beside - sum(mixed.values())
    return float32, {**mixed, ADDED_CASTS: max(casts, 0.0)}


def _by_op(
    seconds: Iterable[tuple[str, float]], op_of: Mapping[str, str]
) -> dict[str, float]:
    """Add up by op, parts of a node that was split under its own.

    What stands for data of the program counts for nothing.
    """
    total: dict[str, float] = defaultdict(float)
    for node, took in seconds:
        if SOURCE in node or WAIT in node:
            continue
        if f"/{CAST_STEM}" in node:
            total[ADDED_CASTS] += took
        elif op := op_of.get(node) or op_of.get(node.partition(_PART)[0]):
            total[op] += took
    return total
