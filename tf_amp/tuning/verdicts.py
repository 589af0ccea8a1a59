"""Which graph is faster: remembered from earlier runs, or found out by the next steps.

A verdict is kept by the fingerprint of its graphs, so that steps are compared once, not
in every process.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable

from absl import logging

from grappler_pass.costs.records import Verdict
from grappler_pass.draft import Outcome, Trial
from tf_amp.seeds import digest_of_seeds, stamps_of_seeds
from tf_amp.tuning import step_comparison
from tf_amp.tuning.comparison import Comparison
from tf_amp.tuning.fingerprint import fingerprint_of
from tf_amp.tuning.known_costs import KnownCosts

# What this process has found, by device and fingerprint.
_found: dict[tuple[str, str], bool] = {}
# Graphs that stay float32, as Grappler brings them back: what differs a little from one
# that was rejected must not be tried again, what is merely called alike must be.
_rejected: set[Hashable] = set()


def outcome_of(
    trial: Trial, costs: KnownCosts, decided: Callable[[bool], None]
) -> Outcome:
    """Tell which of two graphs is faster, or have it found out.

    What is certain without is not compared.

    Args:
      trial: both graphs.
      costs: of the device that they run on, with the database.
      decided: called once with whether the rewritten graph is, if that is open.
    """
    again = _again(trial, costs)
    if again in _rejected:
        return Outcome.SLOWER
    fingerprint = fingerprint_of(trial)
    known = _known(fingerprint, costs)
    if known is False:
        _rejected.add(again)
    if known is not None:
        return Outcome.FASTER if known else Outcome.SLOWER
    if trial.is_certain:
        return Outcome.UNKNOWN
    keep = functools.partial(_keep, trial.name, fingerprint, costs, decided)
    return Outcome.OPEN if step_comparison.begin(keep) else Outcome.UNKNOWN


def _again(trial: Trial, costs: KnownCosts) -> Hashable:
    """Return what stays the same when Grappler comes a second time with a graph."""
    seeds = digest_of_seeds(trial.before, trial.shapes)
    stamps = stamps_of_seeds(trial.before)
    return costs.key, trial.low_dtype, trial.name, trial.item.fetch, seeds, stamps


def _known(fingerprint: str, costs: KnownCosts) -> bool | None:
    key = (costs.key, fingerprint)
    if key not in _found and costs.database is not None:
        known = costs.database.verdict(costs.key, costs.tensorflow, fingerprint)
        if known is not None:
            _found[key] = known.faster
    return _found.get(key)


def _keep(
    name: str,
    fingerprint: str,
    costs: KnownCosts,
    decided: Callable[[bool], None],
    is_faster: bool,
    compared: Comparison | None,
) -> None:
    """Remember what steps have found; a failure may be this process' alone."""
    kept = "16 bits are kept" if is_faster else "it stays float32"
    logging.info("%s compared: %s; %s", name or "A graph", compared or "failed", kept)
    _found[costs.key, fingerprint] = is_faster
    if compared is not None and costs.database is not None:
        verdict = Verdict(is_faster, compared.ratio, time.time())
        costs.database.keep_verdict(costs.key, costs.tensorflow, fingerprint, verdict)
    decided(is_faster)
