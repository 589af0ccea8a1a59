"""Run a graph in float32 and rewritten, on the same values, beside two controls.

Where it does not hold, the operations that must be float32 are searched for. Suspects
are what the plan moved to 16 bits, in the order of execution. Each try is the same plan
without some of them, carried out once and run once.
"""

from __future__ import annotations

import bisect as bisection
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.eligibility.exclusions import (
    differentiated,
    unmatched,
    without_call_scopes,
)
from grappler_pass.functions import conversion
from grappler_pass.graph.view import GraphView
from grappler_pass.planning.plan import Plan
from tf_amp.config.setting_values import is_of_layer
from tf_amp.run import progress
from tf_amp.run.graph_cases import (
    GraphCase,
    completed,
    rounded,
    run,
    with_run_shapes,
)
from tf_amp.run.graph_copy import Values
from tf_amp.tools.verify.comparing import checks_of
from tf_amp.tools.verify.verification import (
    GRADIENT,
    Culprit,
    Verification,
    default_tolerance,
)
from tf_amp.tracing.stamp_reader import forward_names
from tf_amp.training.scale_state import PREFIX as LOSS_SCALE

# In the name of a loss scale that stays what it is.
_STATIC = "Static"
# Of the floats of a state the scale comes first.
_PLACE = 0
# What is not excluded is in 16 bits, wherever it stands: so a try is the plan without
# what is cleared, and nothing else is missing.
_LEVEL = "O3"
_REASON = "tried in float32"

_T = TypeVar("_T")


def verified(
    case: GraphCase,
    *,
    tolerance: float | None = None,
    bisect: bool = False,
    data: str = "",
) -> Verification:
    """Return what is found of a case's rewrite.

    What the case lacks to be run is made up. The tolerance is for relative errors;
    None: 8 roundings of the type. To bisect is to look for the operations that must be
    float32, where it does not hold. `data` says in words what it is run on.
    NotMeasurableError: the graph cannot be run by itself.
    """
    case = with_run_shapes(case)
    rewrite = _rewritten(case)
    values: Values = completed(case, (case.graph_def, rewrite.graph_def))
    if rewrite.changed:
        values = with_lowered_scale(case, rewrite.graph_def, values)
    controls = _Controls(case, values, tolerance)
    found = controls.verification_of(rewrite)
    missing = sum(name not in case.values for name in values)
    if missing and not data:
        data = f"made-up data for {missing} of {len(values)} inputs and variables"
    found = dataclasses.replace(found, data=data)
    if not bisect or found.ok or rewrite.plan is None:
        return found
    search = _Search(controls, rewrite.plan)
    culprits = culprits_among(search.suspects, search.holds_with) or ()
    return dataclasses.replace(
        found, culprits=tuple(map(search.described, culprits)), tries=search.tries
    )


def with_lowered_scale(case: GraphCase, graph_def: GraphDef, values: Values) -> Values:
    """Return values with a loss scale at which the gradients of a graph are finite.

    A dynamic scale begins where the first steps overflow, by design: these are skipped.
    Not they are compared, but the first step that counts. Where none is found, or
    losses are not scaled, the values are those given. The graph is the case's in mixed
    precision.
    """
    gradients = [each.name for each in case.watched if each.kind == GRADIENT]
    # Those that may change: states are vectors of floats.
    scales = [
        handle
        for handle, name in case.variables.items()
        if LOSS_SCALE in name and _STATIC not in name and handle in values
        if values[handle].dtype.kind == "f" and values[handle].ndim == 1
    ]
    tried = dict(values)
    while scales:
        found = run(case, graph_def, tried)
        computed = [found[name] for name in gradients if name in found]
        if all(np.isfinite(each).all() for each in computed):
            return tried
        if all(tried[name][_PLACE] <= 1.0 for name in scales):
            break
        for name in scales:
            tried[name] = tried[name].copy()
            tried[name][_PLACE] /= 2.0
    return values


def _rewritten(
    case: GraphCase, kept: Iterable[str] = (), *, opt_level: str = ""
) -> pipeline.Rewrite:
    """Run the pass on a case, at its own level by default; more nodes may be kept."""
    tried = ((name, _REASON) for name in kept)
    item = dataclasses.replace(case.item, excluded=(*case.item.excluded, *tried))
    level = opt_level or case.settings.opt_level
    return pipeline.optimize(
        case.graph_def,
        item,
        dataclasses.replace(
            case.settings, opt_level=level, own_steps=None, memory=None
        ),
        shapes=lambda: case.shapes,
        name=case.name,
    )


def _low_nodes(plan: Plan | None) -> tuple[str, ...]:
    """Name the nodes that a plan moves to 16 bits, each once, in its order."""
    rows = plan.decisions if plan is not None else ()
    return tuple(dict.fromkeys(row.slot.node for row in rows if row.is_low))


class _Controls:
    """Runs of a case in float32, which every rewrite of it is compared with.

    They are on the same values, twice, of which the second shows the noise, and once
    with inputs and weights rounded to 16 bits. The tolerance is for relative errors.
    """

    def __init__(
        self, case: GraphCase, values: Values, tolerance: float | None
    ) -> None:
        """Run a case in float32."""
        low_dtype = case.settings.low_dtype
        moved = {name: rounded(v, low_dtype) for name, v in values.items()}
        self.case, self._values = case, values
        self._expected = run(case, case.graph_def, values)
        self._noise = run(case, case.graph_def, values)
        self._rounded = run(case, case.graph_def, moved)
        self._tolerance = (
            default_tolerance(low_dtype) if tolerance is None else tolerance
        )

    def verification_of(self, rewrite: pipeline.Rewrite) -> Verification:
        """Run a rewrite of the case and compare."""
        case, plan, mixed = self.case, rewrite.plan, self._expected
        if rewrite.changed:
            mixed = run(case, rewrite.graph_def, self._values)
        runs = {"mixed": mixed, "noise": self._noise, "rounded": self._rounded}
        kinds = {watched.name: watched.kind for watched in case.watched}
        return Verification(
            graph=case.name,
            checks=checks_of(self._expected, runs, kinds),
            low_dtype=case.settings.low_dtype,
            tolerance=self._tolerance,
            plan=plan.verdict().removeprefix(f"{plan.graph}: ") if plan else "",
            low_operations=len(_low_nodes(plan)),
            excluded=case.settings.exclude,
            unmatched=_unmatched(case),
        )


def _unmatched(case: GraphCase) -> tuple[str, ...]:
    """Return the exclusions that match neither an operation nor a part of one."""
    parts = {reason for _, reason in case.item.excluded}
    bodies = conversion.bodies_of(case.graph_def).values()
    names = [node.name for nodes in bodies for node in nodes]
    patterns = [each for each in case.settings.exclude if each not in parts]
    return unmatched([each for each in patterns if not is_of_layer(each)], names)


class _Search:
    """Tries parts of a plan beside the same controls, and counts."""

    def __init__(self, controls: _Controls, plan: Plan) -> None:
        self._controls = controls
        case = controls.case
        view = GraphView.from_graph_def(case.graph_def, case.item)
        self._nodes = {node.name: node for node in view.nodes}
        low = set(_low_nodes(plan))
        names = (view.nodes[index].name for index in view.order)
        self.suspects = tuple(name for name in names if name in low)
        rows = (row.slot.node for row in plan.decisions)
        self._never_low = tuple(dict.fromkeys(name for name in rows if name not in low))
        self.tries = 0

    def holds_with(self, cleared: Sequence[str]) -> bool:
        """Return whether the numbers hold with some suspects in float32."""
        if len(cleared) == len(self.suspects):
            return True
        if not cleared:
            return False
        self.tries += 1
        progress.report("trying parts of the plan", self.tries)
        kept = (*self._never_low, *cleared)
        rewrite = _rewritten(self._controls.case, kept, opt_level=_LEVEL)
        return self._controls.verification_of(rewrite).ok

    def described(self, name: str) -> Culprit:
        """Return a node as people know it."""
        node = self._nodes[name]
        forward_ops = forward_names(node.proto)
        forward = forward_ops[-1] if forward_ops else differentiated(name)
        forward = forward or without_call_scopes(name)
        layer = forward.rpartition("/")[0]
        pattern = f"^{re.escape(without_call_scopes(name))}$"
        return Culprit(name, node.op, layer, pattern)


def culprits_among(
    suspects: Sequence[_T], holds_with: Callable[[Sequence[_T]], bool]
) -> tuple[_T, ...] | None:
    """Return a smallest set of suspects that must be cleared; None: all do not suffice.

    They are in order; without any one of them it does not hold. Looked for is the
    shortest beginning of the sequence that fixes it when cleared: its last member is a
    culprit. With that one cleared for good the next is looked for before it. So k
    culprits among n suspects take about k * (log2(n) + 1) tries, not counting the two
    that tell whether there is anything to look for. Clearing more must not do harm.
    """
    if not holds_with(suspects):
        return None
    found: list[_T] = []
    end = len(suspects)
    while not holds_with(found):
        # All of `end` do hold, so that this is not tried.
        end = bisection.bisect_left(
            range(end),
            True,
            lo=1,
            key=lambda length: holds_with([*suspects[:length], *found]),
        )
        end -= 1
        found.insert(0, suspects[end])
    return tuple(found)
