"""Which graph is faster: remembered from an earlier trial, or found out by one.

A trial is kept by the fingerprint of its graphs, so that it is paid for once. One that
ended undecided is tried again if a run of the program has more time; until then it
counts for what it leans to.
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

# Behind the fingerprint of a trial that ended undecided.
_OPEN = " open"
# What this process has found, by device and fingerprint.
_found: dict[tuple[str, str], bool] = {}
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
    known = _known(fingerprint, costs)
    if known is not None:
        return known
    try:
        # Where the turn does not come, no time is left to judge.
        with paid_turn(costs.folder, allowance), allowance.spending():
            found = judge(trial, allowance.remaining())
    except NotRunnable as error:
        logging.vlog(1, "%s is not tried: %s", trial.name or "a graph", error)
        return _known(fingerprint + _OPEN, costs)
    logging.info("%s tried: %s", trial.name or "a graph", found)
    faster = found.is_faster
    if faster is None:
        fingerprint += _OPEN
        faster = found.leans_faster(is_sure=trial.is_sure)
    _keep(fingerprint, Verdict(faster, found.comparison.ratio, time.time()), costs)
    allowance.keep()
    return faster


def _known(fingerprint: str, costs: KnownCosts) -> bool | None:
    key = (costs.key, fingerprint)
    if key not in _found and costs.database is not None:
        known = costs.database.verdict(costs.key, costs.tensorflow, fingerprint)
        if known is not None:
            _found[key] = known.faster
    return _found.get(key)


def _keep(fingerprint: str, verdict: Verdict, costs: KnownCosts) -> None:
    _found[costs.key, fingerprint] = verdict.faster
    if costs.database is not None:
        costs.database.keep_verdict(costs.key, costs.tensorflow, fingerprint, verdict)
