"""Which graph is faster: remembered from earlier runs, or found out by the next steps.

A verdict is kept by the fingerprint of its graphs, so that steps are compared once, not
in every process. Grappler's second visit of a graph that has lost, which differs a
little, does not come here: see `second_visits`.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator

from absl import logging
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.costs.database.price_list import Measured, Sample
from grappler_pass.costs.database.records import Verdict
from grappler_pass.graph.op_traits import keeps_state_in_kernel
from grappler_pass.planning.draft import Outcome, Trial
from tf_amp.config.peers import peers
from tf_amp.measuring.fingerprint import fingerprint_of
from tf_amp.measuring.known_costs import KnownCosts
from tf_amp.measuring.steps import compared_calls
from tf_amp.measuring.steps.step_comparison import Steps
from tf_amp.tracing.grappler_preview import with_bodies

# Of the seconds of a node in one step, as the logarithm's deviation.
_SPREAD = 0.2


def outcome_of(
    trial: Trial, costs: KnownCosts, decided: Callable[[bool], None]
) -> Outcome:
    """Return which of two graphs is faster, or have it found out and reported once.

    What is certain without is not compared, nor is what keeps state in its kernels: a
    second instance would repeat the random numbers of the first, or miss what lies in
    its queues.
    """
    fingerprint = fingerprint_of(trial)
    keep = functools.partial(_keep, trial, fingerprint, costs, decided)
    if fingerprint not in costs.verdicts:
        remembered = _remembered(fingerprint, costs)
        costs.verdicts[fingerprint] = remembered.faster if remembered else None
        # Workers in step go by what the chief finds, at the calls of a comparison.
        if remembered and not peers() and state_keeper(trial.before) is None:
            forget = functools.partial(_forget, trial, fingerprint, costs)
            compared_calls.check(trial, remembered, keep, forget)
    known = costs.verdicts[fingerprint]
    if known:
        compared_calls.accept()
    if known is not None:
        return Outcome.FASTER if known else Outcome.SLOWER
    if trial.is_certain and not compared_calls.another_plan():
        return Outcome.UNKNOWN
    keeper = state_keeper(trial.before)
    if keeper is not None:
        logging.info(
            "%s is not compared: %s (%s) keeps state in its kernel; predictions decide",
            trial.name or "A graph",
            keeper.name,
            keeper.op,
        )
        return Outcome.KERNEL_STATE
    if not trial.is_sure and not peers() and compared_calls.begin_in_float32(trial):
        return Outcome.WITHHELD
    return Outcome.OPEN if compared_calls.begin(trial, keep) else Outcome.UNKNOWN


def state_keeper(graph_def: GraphDef) -> NodeDef | None:
    """Return a node of a graph, or of its functions, that cannot have two kernels."""
    graph_def = with_bodies(graph_def)
    bodies = (function.node_def for function in graph_def.library.function)
    own = () if compared_calls.shares_kernels() else graph_def.node
    nodes = itertools.chain(own, *bodies)
    return next(filter(keeps_state_in_kernel, nodes), None)


def _remembered(fingerprint: str, costs: KnownCosts) -> Verdict | None:
    if costs.database is None:
        return None
    return costs.database.verdict(costs.key, costs.tensorflow, fingerprint)


def _forget(trial: Trial, fingerprint: str, costs: KnownCosts) -> None:
    """Know a verdict no more that steps contradict."""
    logging.info(
        "%s takes longer than it did when its steps were compared; they are compared "
        "again",
        trial.name or "A graph",
    )
    costs.verdicts[fingerprint] = None


def _keep(
    trial: Trial,
    fingerprint: str,
    costs: KnownCosts,
    decided: Callable[[bool], None],
    is_faster: bool,
    steps: Steps,
) -> bool:
    """Remember what steps have found; a failure may be this process' alone.

    Return whether prices were corrected, so that another plan may be made.
    """
    compared, name = steps.compared, trial.name or "A graph"
    kept = "16 bits are kept" if is_faster else "it is slower in 16 bits"
    logging.info("%s compared: %s; %s", name, compared or "failed", kept)
    costs.verdicts[fingerprint] = is_faster
    if compared is not None and costs.database is not None:
        graph = costs.key, costs.tensorflow, fingerprint
        seconds = compared.seconds_before, compared.seconds_after
        costs.database.keep([Verdict(*graph, is_faster, *seconds, time.time())])
    decided(is_faster)
    rows = () if is_faster else tuple(_corrections(trial, steps))
    if rows:
        costs.correct(rows)
    return bool(rows)


def _corrections(trial: Trial, steps: Steps) -> Iterator[Measured]:
    """Yield what nodes in 16 bits have taken in a step of the job, and in float32."""
    for name, probe in trial.probes.items():
        float32, low = steps.float32.get(name, 0.0), steps.mixed.get(name, 0.0)
        if float32 > 0.0 and low > 0.0:
            for dtype, seconds in (("float32", float32), (trial.low_dtype, low)):
                sample = Sample(seconds, seconds, _SPREAD, 1, time.time())
                yield Measured(probe, dtype, sample)
