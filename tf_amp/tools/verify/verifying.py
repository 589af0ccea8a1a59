"""Run a graph in float32 and rewritten, on the same values, beside two controls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from tf_amp.tools.graph_runs.differences import Array, rounded
from tf_amp.tools.graph_runs.executing import (
    Case,
    Values,
    completed,
    run,
    with_run_shapes,
)
from tf_amp.tools.verify.bisecting import low_nodes, rewritten, with_culprits
from tf_amp.tools.verify.comparing import checks_of
from tf_amp.tools.verify.verification import GRADIENT, Verification, default_tolerance
from tf_amp.training.loss_scale.scale_state import PREFIX as LOSS_SCALE

# In the name of a loss scale that stays what it is.
_STATIC = "Static"
# Of the floats of a state the scale comes first.
_PLACE = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Controls:
    """Runs of a case in float32, which every rewrite of it is compared with.

    They are on the same values, twice, of which the second shows the noise, and once
    with inputs and weights rounded to 16 bits. The tolerance is for relative errors.
    """

    case: Case
    values: Values
    expected: Mapping[str, Array]
    noise: Mapping[str, Array]
    rounded: Mapping[str, Array]
    tolerance: float

    @classmethod
    def from_case(cls, case: Case, values: Values, tolerance: float | None) -> Controls:
        """Run a case in float32."""
        low_dtype = case.settings.low_dtype
        moved = {name: rounded(v, low_dtype) for name, v in values.items()}
        chosen = default_tolerance(low_dtype) if tolerance is None else tolerance
        return cls(
            case=case,
            values=values,
            expected=run(case, case.graph_def, values),
            noise=run(case, case.graph_def, values),
            rounded=run(case, case.graph_def, moved),
            tolerance=chosen,
        )

    def verification_of(self, rewrite: pipeline.Rewrite) -> Verification:
        """Run a rewrite of the case and compare."""
        case, plan = self.case, rewrite.plan
        mixed: Mapping[str, Array] = self.expected
        if rewrite.changed:
            mixed = run(case, rewrite.graph_def, self.values)
        runs = {"mixed": mixed, "noise": self.noise, "rounded": self.rounded}
        kinds = {watched.name: watched.kind for watched in case.watched}
        return Verification(
            graph=case.name,
            checks=checks_of(self.expected, runs, kinds),
            low_dtype=case.settings.low_dtype,
            tolerance=self.tolerance,
            plan=plan.summary().removeprefix(f"{plan.graph}: ") if plan else "",
            low_operations=len(low_nodes(plan)),
            excluded=case.settings.exclude,
        )


def verified(
    case: Case, *, tolerance: float | None = None, bisect: bool = False, data: str = ""
) -> Verification:
    """Return what is found of a case's rewrite.

    What the case lacks to be run is made up. The tolerance is for relative errors;
    None: 8 roundings of the type. To bisect is to look for the operations that must be
    float32, where it does not hold. `data` says in words what it is run on.
    NotMeasurableError: the graph cannot be run by itself.
    """
    case = with_run_shapes(case)
    rewrite = rewritten(case)
    values: Values = completed(case, (case.graph_def, rewrite.graph_def))
    if rewrite.changed:
        values = with_lowered_scale(case, rewrite.graph_def, values)
    controls = Controls.from_case(case, values, tolerance)
    found = controls.verification_of(rewrite)
    missing = sum(name not in case.values for name in values)
    if missing and not data:
        data = f"made-up data for {missing} of {len(values)} inputs and variables"
    found = dataclasses.replace(found, data=data)
    if bisect and not found.ok and rewrite.plan is not None:
        return with_culprits(found, controls, rewrite.plan)
    return found


def with_lowered_scale(case: Case, graph_def: GraphDef, values: Values) -> Values:
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
