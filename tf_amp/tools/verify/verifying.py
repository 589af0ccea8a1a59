"""Run a graph in float32 and rewritten, on the same values, beside two controls.

Where it does not hold, it runs once more as with casts by hand. Where those do not move
it as far, the operations that must be float32 are searched for. Suspects are what the
plan moved to 16 bits, in the order of execution. Each try is the same plan without some
of them, carried out once and run once.
"""

from __future__ import annotations

import bisect as bisection
import dataclasses
import itertools
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.annotations import FUSED
from grappler_pass.eligibility.exclusions import (
    differentiated,
    unmatched,
    without_call_scopes,
)
from grappler_pass.functions import conversion
from grappler_pass.graph.op_table import ALLOW
from grappler_pass.graph.view import Graph, Node
from grappler_pass.planning.plan import Plan
from tf_amp.config.amp_config import LowDtype, OptLevel, checked_settings
from tf_amp.config.setting_values import (
    checked_patterns,
    checked_tolerance,
    is_of_layer,
)
from tf_amp.run import batches as data
from tf_amp.run import progress
from tf_amp.run.graph_cases import (
    GraphCase,
    completed,
    rounded,
    run,
    with_run_shapes,
)
from tf_amp.run.graph_copy import Array, Values
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools import explanation
from tf_amp.tools.verify.cases import case_of
from tf_amp.tools.verify.verification import (
    GRADIENT,
    OUTPUT,
    Culprit,
    Difference,
    Judgement,
    TensorCheck,
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


def verify(
    fn: Any,
    *args: Any,
    dtype: LowDtype | None = None,
    opt_level: OptLevel | None = None,
    exclude: Iterable[str] | None = None,
    tolerance: float | None = None,
    bisect: bool = False,
    fetches: Iterable[str] | None = None,
    **kwargs: Any,
) -> Verification:
    """Run a function in float32 and as it would be rewritten, and compare.

    Every result is compared, and of a training step the gradient of every variable.
    Nothing of the program changes: variables are copies, with the values they have now.

    Args:
      fn: a `tf.function`, any callable it could wrap (a Keras model), a
        ConcreteFunction, or a GraphDef.
      *args: what it is called with; of a `tf.TensorSpec` the values are synthetic; for
        a GraphDef, its fetches, one by one or in one list.
      dtype: "bfloat16" or "float16"; as in force for the function by default.
      opt_level: "O1" to "O3"; as in force by default.
      exclude: regular expressions, or `@FILE`, of what stays float32.
      tolerance: largest relative error; by default 8 roundings of the type.
      bisect: find the operations that must be float32 where it does not hold.
      fetches: names of the nodes whose outputs are read, for a GraphDef.
      **kwargs: named arguments of the function.

    Raises:
      UnfitDataError: the arguments are not those of the function.
      NotMeasurableError: it cannot be run outside of its program; the message says why.
      ConfigError: a setting is unknown, or an argument is not one of the function's.
    """
    check_tensorflow()
    explanation.check_named(verify, fn, kwargs)
    settings = checked_settings(dtype=dtype, opt_level=opt_level)
    settings["exclude"] = checked_patterns(exclude or ())
    case = case_of(fn, args, kwargs, fetches=fetches, settings=settings)
    return verified(case, tolerance=checked_tolerance(tolerance), bisect=bisect)


def verify_saved_model(
    folder: pathlib.Path,
    settings: Mapping[str, Any],
    *,
    signature: str | None = None,
    file: pathlib.Path | None = None,
    batch: int | None = None,
    tolerance: float | None = None,
    bisect: bool = False,
) -> tuple[Verification, ...]:
    """Verify each signature of a SavedModel, or the one named.

    The settings go before those in force. The file is an .npz with data; None: made-up
    data, of `batch` rows where the model leaves that open. The tolerance and `bisect`
    are as for `verify`, and so are errors, beside those of `signatures_of`.
    """
    by_name: dict[str, Verification] = {}
    signatures = tuple(data.signatures_of(folder, signature).items())
    for name, function in progress.each(signatures, "verifying signatures"):
        values, words = [dict[str, Any]()], ""
        if file is not None:
            batches = data.batches_from_file(file, data.specs_of(function))
            values = [data.batch_by_placeholder(function, each) for each in batches]
            words = str(file)
        cases = (
            case_of(function, settings=settings, values=each, batch=batch)
            for each in values
        )
        by_name[name] = worst_of(
            [
                verified(case, tolerance=tolerance, bisect=bisect, data=words)
                for case in cases
            ]
        )
    return explanation.with_joined_names(
        by_name, lambda each: dataclasses.replace(each, graph="", plan="")
    )


def worst_of(verifications: Sequence[Verification]) -> Verification:
    """Return one verification for several of the same graph: each tensor's worst.

    The culprits are those of all.
    """
    first = next((each for each in verifications if not each.ok), verifications[0])
    worse = [*Judgement].index

    def badness(check: TensorCheck) -> tuple[int, int, float]:
        rank = worse(first.verdict_on(check))
        return rank, check.mixed.non_finite, check.mixed.relative

    columns = zip(*(each.checks for each in verifications), strict=True)
    worst = (max(column, key=badness) for column in columns)
    searched = [each.culprits for each in verifications if each.culprits is not None]
    culprits = dict.fromkeys(itertools.chain.from_iterable(searched))
    return dataclasses.replace(
        first,
        checks=tuple(worst),
        culprits=tuple(culprits) if searched else None,
        tries=sum(each.tries for each in verifications),
    )


def verified(
    case: GraphCase,
    *,
    tolerance: float | None = None,
    bisect: bool = False,
    data: str = "",
) -> Verification:
    """Run a case as it is and rewritten, and return the verification.

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
    low_dtype = case.settings.low_dtype
    moved = {name: rounded(value, low_dtype) for name, value in values.items()}
    controls = Controls(
        run(case, case.graph_def, values),
        run(case, case.graph_def, values),
        run(case, case.graph_def, moved),
        low_dtype,
    )
    kinds = {watched.name: watched.kind for watched in case.watched}

    def compared(rewrite: pipeline.Rewrite, **known: Any) -> Verification:
        mixed = controls.float32
        if rewrite.changed:
            mixed = run(case, rewrite.graph_def, values)
        known["graph"] = case.name
        return controls.verification_of(mixed, kinds, tolerance, **known)

    missing = sum(name not in case.values for name in values)
    if missing and not data:
        data = f"synthetic data for {missing} of {len(values)} inputs and variables"
    # Exclusions may match operations, or layers and other parts.
    parts = {reason for _, reason in case.item.excluded}
    bodies = conversion.nodes_by_function(case.graph_def).values()
    nodes = [node for of_body in bodies for node in of_body]
    names = [node.name for node in nodes]
    excluded, plan = case.settings.exclude, rewrite.plan
    of_ops = [p for p in excluded if p not in parts and not is_of_layer(p)]
    known: dict[str, Any] = dict(
        plan=plan.verdict().removeprefix(f"{plan.graph}: ") if plan else "",
        low_operations=len(_low_nodes(plan)),
        is_changed=rewrite.changed,
        data=data,
        excluded=excluded,
        unmatched=unmatched(of_ops, names),
        fused=sum(FUSED in node.attr for node in nodes),
    )
    verification = compared(rewrite, **known)
    if verification.ok or plan is None:
        return verification
    lists = case.settings.lists
    others = [n.name for n in nodes if lists.place_of(n).list_name != ALLOW]
    by_hand = _rewritten(case, others, opt_level=_LEVEL)
    controls = dataclasses.replace(
        controls, by_hand=run(case, by_hand.graph_def, values)
    )
    verification = compared(rewrite, **known)
    if not bisect or verification.ok:
        return verification
    return _with_culprits(verification, case, plan, compared)


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
        results = run(case, graph_def, tried)
        computed = [results[name] for name in gradients if name in results]
        if all(np.isfinite(each).all() for each in computed):
            return tried
        if all(tried[name][_PLACE] <= 1.0 for name in scales):
            break
        for name in scales:
            tried[name] = tried[name].copy()
            tried[name][_PLACE] /= 2.0
    return values


def _rewritten(
    case: GraphCase, float32_nodes: Iterable[str] = (), *, opt_level: str = ""
) -> pipeline.Rewrite:
    """Run the pass on a case, at its own level by default; more nodes may be kept."""
    tried = ((name, _REASON) for name in float32_nodes)
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


@dataclasses.dataclass(frozen=True, eq=False)
class Controls:
    """Results in float32, which every run in mixed precision is compared with.

    All are by name of the tensor.

    Attributes:
      float32: on the same values.
      noise: on these once more.
      rounded: with inputs and weights rounded to 16 bits.
      low_dtype: to which they are.
      by_hand: with nothing but products in 16 bits; None: that was not run.
    """

    float32: Mapping[str, Array]
    noise: Mapping[str, Array]
    rounded: Mapping[str, Array]
    low_dtype: str
    by_hand: Mapping[str, Array] | None = None

    def verification_of(
        self,
        mixed: Mapping[str, Array],
        kinds: Mapping[str, str],
        tolerance: float | None = None,
        **known: Any,
    ) -> Verification:
        """Return a verification with a row for every tensor that all runs have.

        Kinds are "output", which is the default, and "gradient". The tolerance is for
        relative errors; None: 8 roundings of the type. What else is known is passed on.
        """
        runs = {"mixed": mixed, "noise": self.noise, "rounded": self.rounded}
        if self.by_hand is not None:
            runs["by_hand"] = self.by_hand
        checks = []
        for name, value in self.float32.items():
            if not all(name in other for other in runs.values()):
                continue
            # Text and truth values are finite, and have no scale.
            is_text = value.dtype.kind in "OSUb"
            numbers = np.zeros(0) if is_text else value.astype(np.float64)
            finite = numbers[np.isfinite(numbers)]
            checks.append(
                TensorCheck(
                    name=name,
                    kind=kinds.get(name, OUTPUT),
                    dtype=str(value.dtype),
                    shape=tuple(map(int, value.shape)),
                    **{n: difference_of(value, each[name]) for n, each in runs.items()},
                    non_finite=numbers.size - finite.size,
                    scale=_norm(finite) / math.sqrt(finite.size or 1),
                )
            )
        if tolerance is None:
            tolerance = default_tolerance(self.low_dtype)
        return Verification(
            checks=tuple(checks),
            low_dtype=self.low_dtype,
            tolerance=tolerance,
            **known,
        )


def _with_culprits(
    verification: Verification,
    case: GraphCase,
    plan: Plan,
    compared: Callable[[pipeline.Rewrite], Verification],
) -> Verification:
    """Try parts of a plan beside the same controls until its culprits are known."""
    low = set(_low_nodes(plan))
    view = Graph(case.graph_def, case.item)
    suspects = [view.nodes[index] for index in view.order]
    suspects = [node for node in suspects if node.name in low]
    rows = (row.slot.node for row in plan.decisions)
    never_low = dict.fromkeys(name for name in rows if name not in low)
    tries = 0

    def holds_with(cleared: Sequence[Node]) -> bool:
        nonlocal tries
        if len(cleared) == len(suspects):
            return True
        if not cleared:
            return False
        tries += 1
        progress.report("trying parts of the plan", tries)
        float32_nodes = (*never_low, *(node.name for node in cleared))
        rewrite = _rewritten(case, float32_nodes, opt_level=_LEVEL)
        return compared(rewrite).ok

    culprits = []
    for node in culprits_among(suspects, holds_with) or ():
        own_name = without_call_scopes(node.name)
        forward_ops = forward_names(node.proto)
        forward = forward_ops[-1] if forward_ops else differentiated(node.name)
        layer = (forward or own_name).rpartition("/")[0]
        culprits.append(Culprit(node.name, node.op, layer, f"^{re.escape(own_name)}$"))
    return dataclasses.replace(verification, culprits=tuple(culprits), tries=tries)


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
    culprits: list[_T] = []
    end = len(suspects)
    while not holds_with(culprits):
        # All of `end` do hold, so that this is not tried.
        end = bisection.bisect_left(
            range(end),
            True,
            lo=1,
            key=lambda length: holds_with([*suspects[:length], *culprits]),
        )
        end -= 1
        culprits.insert(0, suspects[end])
    return tuple(culprits)


def difference_of(float32: Array, other: Array) -> Difference:
    """Compare a tensor with what it is in float32.

    What is not finite in either is counted, and left out of the rest. Tensors that hold
    no numbers of floating type are compared as numbers; text differs by 0 or 1.
    """
    if float32.dtype.kind in "OSU":
        expected = np.zeros(float32.shape)
        actual = np.broadcast_to(float32 != other, float32.shape) * 1.0
    else:
        expected, actual = float32.astype(np.float64), other.astype(np.float64)
    if expected.shape != actual.shape:
        return Difference(math.inf, math.inf, 0.0, 0)
    sound = np.isfinite(expected) & np.isfinite(actual)
    lost = int(np.count_nonzero(np.isfinite(expected) & ~np.isfinite(actual)))
    expected, actual = expected[sound], actual[sound]
    error = actual - expected
    if not error.any():
        return Difference(non_finite=lost)
    norm, norms = _norm(expected), _norm(expected) * _norm(actual)
    return Difference(
        largest=float(np.abs(error).max()),
        relative=_norm(error) / norm if norm > 0.0 else math.inf,
        cosine=float(np.dot(expected, actual)) / norms if norms else 0.0,
        non_finite=lost,
    )


def _norm(value: Array) -> float:
    return float(np.linalg.norm(value))
