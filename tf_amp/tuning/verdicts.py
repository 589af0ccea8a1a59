"""Which graph is faster: remembered from an earlier trial, or found out by one.

A trial is kept by the fingerprint of its graphs, so that it is paid for once, also by
workers that start together. One that ended undecided is tried again if a run of the
program has more time; until then it counts for what it leans to.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

from absl import logging

from grappler_pass.costs.records import Verdict
from grappler_pass.draft import Trial
from tf_amp.seeds import digest_of_seeds, stamps_of_seeds
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
# Graphs that stay float32, as Grappler brings them back: what differs a little from one
# that was rejected must not be tried again, what is merely called alike must be.
_rejected: set[Hashable] = set()


def is_faster(trial: Trial, costs: KnownCosts, allowance: Allowance) -> bool | None:
    """Tell whether the rewritten graph is faster; None where it stays open.

    To be asked by one thread at a time: two trials at once would time each other.

    Args:
      trial: both graphs.
      costs: of the device that they run on, with the database.
      allowance: time for a trial, if one is needed.
    """
    again = _again(trial, costs)
    if again in _rejected:
        return False
    verdict = _verdict(trial, costs, allowance)
    if verdict is False:
        _rejected.add(again)
    return verdict


def _again(trial: Trial, costs: KnownCosts) -> Hashable:
    """Return what stays the same when Grappler comes a second time with a graph."""
    seeds = digest_of_seeds(trial.before, trial.shapes)
    stamps = stamps_of_seeds(trial.before)
    return costs.key, trial.low_dtype, trial.name, trial.item.fetch, seeds, stamps


def _verdict(trial: Trial, costs: KnownCosts, allowance: Allowance) -> bool | None:
    fingerprint = fingerprint_of(trial)
    known = _known(fingerprint, costs)
    if known is not None:
        return known
    # An open verdict of an earlier run may be improved on, not one found meanwhile.
    was_open = _known(fingerprint + _OPEN, costs)
    try:
        with paid_turn(costs.folder, allowance) as is_mine:
            known = _known(fingerprint, costs)
            if known is None and was_open is None:
                known = _known(fingerprint + _OPEN, costs)
            if known is not None:
                return known
            if not is_mine or not allowance.remaining():
                raise NotRunnable("no time is left")
            return _found_out(trial, fingerprint, costs, allowance)
    except NotRunnable as error:
        logging.vlog(1, "%s is not tried: %s", trial.name or "a graph", error)
        return was_open


def _found_out(
    trial: Trial, fingerprint: str, costs: KnownCosts, allowance: Allowance
) -> bool:
    """Try a graph and keep the verdict, before the next process has its turn.

    Raises:
      NotRunnable: it cannot be tried, or not in time.
    """
    try:
        with allowance.spending():
            found = judge(trial, allowance.remaining())
    finally:
        # What could not be tried now cannot be by a process that has less time.
        allowance.keep()
    logging.info("%s tried: %s", trial.name or "a graph", found)
    faster = found.is_faster
    if faster is None:
        fingerprint += _OPEN
        faster = found.leans_faster(is_sure=trial.is_sure)
    _keep(fingerprint, Verdict(faster, found.comparison.ratio, time.time()), costs)
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
