"""Run a graph in float32 and rewritten, on the same values, beside two controls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from grappler_pass import pipeline
from grappler_pass.planning.plan import Plan
from tf_amp.tools.graph_runs.cases import Case, Values
from tf_amp.tools.graph_runs.differences import Array, rounded
from tf_amp.tools.graph_runs.executing import completed, run, with_run_shapes
from tf_amp.tools.verify.bisecting import low_nodes, rewritten, with_culprits
from tf_amp.tools.verify.comparing import checks_of
from tf_amp.tools.verify.lowered_scale import with_lowered_scale
from tf_amp.tools.verify.verification import Verification, default_tolerance

_MADE_UP = "made-up data"


@dataclasses.dataclass(frozen=True, eq=False)
class Controls:
    """Runs of a case in float32, which every rewrite of it is compared with.

    Attributes:
      case: what was run.
      values: that it was run on.
      expected: tensors of the first run, by name.
      noise: of the second.
      rounded: of a run with inputs and weights rounded to 16 bits.
      tolerance: for relative errors.
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
        case = self.case
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
            plan=_reported(rewrite.plan),
            low_operations=len(low_nodes(rewrite.plan)),
            excluded=case.settings.exclude,
        )


def verified(
    case: Case,
    *,
    tolerance: float | None = None,
    bisect: bool = False,
    data: str = "",
) -> Verification:
    """Return what is found of a case's rewrite.

    Args:
      case: the graph, and what it is run on; what is missing is made up.
      tolerance: largest relative error; None: 8 roundings of the type.
      bisect: look for the operations that must be float32, where it does not hold.
      data: what it is run on, in words.

    Raises:
      NotMeasurableError: the graph cannot be run by itself; the message says why.
    """
    case = with_run_shapes(case)
    rewrite = rewritten(case)
    values: Values = completed(case, (case.graph_def, rewrite.graph_def))
    if rewrite.changed:
        values = with_lowered_scale(case, rewrite.graph_def, values)
    controls = Controls.from_case(case, values, tolerance)
    found = controls.verification_of(rewrite)
    found = dataclasses.replace(found, data=data or _data_of(case, values))
    if bisect and not found.ok and rewrite.plan is not None:
        return with_culprits(found, controls, rewrite.plan)
    return found


def _reported(plan: Plan | None) -> str:
    if plan is None:
        return ""
    text = plan.summary()
    return text.removeprefix(f"{plan.graph}: ")


def _data_of(case: Case, values: Values) -> str:
    missing = sum(name not in case.values for name in values)
    if not missing:
        return ""
    return f"{_MADE_UP} for {missing} of {len(values)} inputs and variables"
