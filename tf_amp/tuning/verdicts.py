"""Which graph is faster: remembered from an earlier trial, or found out by one.

A decided trial is kept by the fingerprint of its graphs, so that it is paid for once.
One that ends undecided is not: the next run of the program may have more time.
"""

from __future__ import annotations

import time

from absl import logging

from grappler_pass.costs.records import Verdict
from grappler_pass.draft import Trial
from tf_amp.tuning.budget import Allowance
from tf_amp.tuning.fingerprint import fingerprint_of
from tf_amp.tuning.judging import judge
from tf_amp.tuning.known_costs import KnownCosts
from tf_amp.tuning.machine_turn import paid_turn
from tf_amp.tuning.sandbox import NotRunnable

# What this process has decided, by device and fingerprint.
_decided: dict[tuple[str, str], bool] = {}
# Graphs that stay float32. Grappler comes twice with each, the second time with one
# that differs a little, which must not be tried again.
_rejected: set[tuple[str, ...]] = set()


def is_faster(trial: Trial, costs: KnownCosts, allowance: Allowance) -> bool | None:
    """Tell whether the rewritten graph is faster; None where it stays open.

    To be asked by one thread at a time: two trials at once would time each other.

    Args:
      trial: both graphs.
      costs: of the device that they run on, with the database.
      allowance: time for a trial, if one is needed.
    """
    again = (costs.key, trial.name, *trial.item.fetch)
    if again in _rejected:
        return False
    verdict = _verdict(trial, costs, allowance)
    if verdict is False:
        _rejected.add(again)
    return verdict


def _verdict(trial: Trial, costs: KnownCosts, allowance: Allowance) -> bool | None:
    fingerprint = fingerprint_of(trial)
    key = (costs.key, fingerprint)
    if key not in _decided and costs.database is not None:
        known = costs.database.verdict(costs.key, costs.tensorflow, fingerprint)
        if known is not None:
            _decided[key] = known.faster
    if key in _decided:
        return _decided[key]
    try:
        # Where the turn does not come, no time is left to judge.
        with paid_turn(costs.folder, allowance), allowance.spending():
            found = judge(trial, allowance.remaining())
    except NotRunnable as error:
        logging.vlog(1, "%s is not tried: %s", trial.name or "a graph", error)
        return None
    logging.info("%s tried: %s", trial.name or "a graph", found)
    if found.is_faster is None:
        # The promise is not to be slower: an open verdict that leans there is one.
        return False if found.comparison.ratio <= 1.0 else None
    _decided[key] = found.is_faster
    if costs.database is not None:
        ratio = found.comparison.ratio
        verdict = Verdict(found.is_faster, ratio, time.time())
        costs.database.keep_verdict(costs.key, costs.tensorflow, fingerprint, verdict)
    return found.is_faster
