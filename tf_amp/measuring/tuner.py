"""The tuner that the pass asks: measures prices within a budget, and knows verdicts.

One measurement runs at a time: two at once would time each other. Who waits for a turn
holds nothing that the one at work needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from grappler_pass.costs.database.price_list import Measured
from grappler_pass.planning.draft import Outcome, Stake, Trial
from tf_amp.config.peers import is_joint, peers
from tf_amp.measuring.budget import Allowance
from tf_amp.measuring.known_costs import KnownCosts
from tf_amp.measuring.machine_turn import paid_turn, process_turn
from tf_amp.measuring.probe_timing import measure_here
from tf_amp.measuring.progress import Left, Measuring, is_read, note
from tf_amp.measuring.sandbox.graph_copy import local_device
from tf_amp.measuring.sandbox.own_thread import run_in_own_thread
from tf_amp.measuring.sandbox.runnable import dtypes_of
from tf_amp.measuring.steps import verdicts

# Without a limit, one op gets this long.
_LONGEST_PROBE_SECONDS = 20.0
# One op gets no more than this share of what is left, so that others get some.
_SHARE_OF_PROBE = 0.5
# Less does not suffice to build a graph and run it.
_LEAST_SECONDS = 0.02
# What could not be measured in so much time is not tried again by this process.
_AMPLE_SECONDS = 0.3
# What is measured is written so often, lest it is lost when the job is killed.
_KEEP_SECONDS = 1.0
# Measuring takes no longer than what wrong prices could cost a job in so many steps.
_STEPS_AT_STAKE = 10
# A measurement that takes so much longer than it may, is given up.
_PATIENCE_SECONDS = 60.0


class _State:
    """Of the process."""

    is_broken = False


_state = _State()


class OnlineTuner(NamedTuple):
    """Finds out for one graph what its prices leave uncertain.

    Attributes:
      costs: of the device that the graph runs on.
      allowance: time for this graph.
      elsewhere: costs of the other devices, where single ops may be placed.
    """

    costs: KnownCosts
    allowance: Allowance
    elsewhere: tuple[KnownCosts, ...] = ()

    def measure(self, stakes: Sequence[Stake], low_dtype: str) -> bool:
        """Measure one after the other while the budget lasts.

        Where graphs have a limit, a graph gets no more than wrong prices could cost it
        in some steps: of small steps the job's own tell sooner which plan is faster.
        What is known already, or was found impossible, is not measured again. A price
        that its runs left unsure is, once, where graphs have no limit of their own: a
        job that has one starts at once the second time.

        Returns:
          Whether a price of the models has changed.
        """
        is_new = False
        if self._has_time_for(self._wanted(stakes, low_dtype)):
            is_new = self._measure_when_free(stakes, low_dtype)
        self._note_left(stakes, low_dtype)
        return is_new

    def outcome(self, trial: Trial, decided: Callable[[bool], None]) -> Outcome:
        """Return which of two graphs is faster, or have their steps compared.

        Of workers that train in step the chief decides, about what all of them run.
        """
        others = peers()
        if others and not (others.is_chief and is_joint(trial.before)):
            return Outcome.UNKNOWN
        return verdicts.outcome_of(trial, self.costs, decided)

    def _time_for(self, wanted: Sequence[Stake]) -> float:
        """Return the seconds that are left for measuring prices."""
        if _state.is_broken:
            return 0.0
        left = self.allowance.remaining()
        if self.allowance.is_limited:
            at_stake = _STEPS_AT_STAKE * sum(stake.seconds for stake in wanted)
            left = min(left, at_stake - self.allowance.spent())
        return left

    def _has_time_for(self, wanted: Sequence[Stake]) -> bool:
        return bool(wanted) and self._time_for(wanted) > _LEAST_SECONDS

    def _wanted(self, stakes: Sequence[Stake], low_dtype: str) -> list[Stake]:
        """Return what is not known, each once, in the order that it is asked for."""
        surely = not self.allowance.is_limited
        missing: dict[tuple[str, str], Stake] = {}
        for stake in stakes:
            key, costs = stake.probe.key, self._costs_at(stake)
            dtypes = dtypes_of(stake.probe, low_dtype)
            if costs and not all(
                costs.is_known(key, dtype, surely=surely) for dtype in dtypes
            ):
                missing.setdefault((key, costs.key), stake)
        return list(missing.values())

    def _note_left(self, stakes: Sequence[Stake], low_dtype: str) -> None:
        if is_read():
            asked, missing = (
                frozenset(stake.probe.key for stake in each)
                for each in (stakes, self._wanted(stakes, low_dtype))
            )
            note(Left(asked, missing, _state.is_broken))

    def _costs_at(self, stake: Stake) -> KnownCosts | None:
        """Return those of the device that a stake names; None for one not present."""
        named = (c for c in self._all_costs if c.device_type == stake.device_type)
        return next(named, None)

    @property
    def _all_costs(self) -> tuple[KnownCosts, ...]:
        return (self.costs, *self.elsewhere)

    def _version(self) -> int:
        return sum(costs.prices.version for costs in self._all_costs)

    def _measure_when_free(self, stakes: Sequence[Stake], low_dtype: str) -> bool:
        """Measure in this thread's turn; return whether a price has changed."""
        version = self._version()
        patience = self.allowance.remaining() + _PATIENCE_SECONDS
        with process_turn(patience) as is_mine:
            if is_mine:
                self._measure_in_turn(stakes, low_dtype)
        return self._version() > version

    def _measure_in_turn(self, stakes: Sequence[Stake], low_dtype: str) -> None:
        """Measure what no other thread or process has measured meanwhile."""
        if not self._wanted(stakes, low_dtype):
            return
        with paid_turn(self.costs.folder, self.allowance) as is_mine:
            for costs in self._all_costs:
                costs.refresh()
            wanted = self._wanted(stakes, low_dtype)
            if is_mine and self._has_time_for(wanted):
                self._measure_separately(wanted, low_dtype)

    def _measure_separately(self, wanted: Sequence[Stake], low_dtype: str) -> None:
        """Measure in a thread of its own; what goes wrong ends tuning, not the job."""
        longest = _LONGEST_PROBE_SECONDS * len(wanted)
        patience = min(self._time_for(wanted), longest) + _PATIENCE_SECONDS
        try:
            with self.allowance.spending():
                run_in_own_thread(
                    lambda stopped: self._measure_all(wanted, low_dtype, stopped),
                    patience,
                )
        except (RuntimeError, MemoryError, tf.errors.OpError) as error:
            _state.is_broken = True
            logging.warning("No more costs are measured in this process: %s", error)
        self.allowance.keep()

    def _measure_all(
        self, wanted: Sequence[Stake], low_dtype: str, stopped: Callable[[], bool]
    ) -> None:
        begin = kept = time.monotonic()
        time_given = self._time_for(wanted)
        note(Measuring(0, len(wanted)))
        for number, stake in enumerate(wanted):
            left = time_given - (time.monotonic() - begin)
            if left < _LEAST_SECONDS or stopped():
                break
            rows = self._measure_one(stake, low_dtype, left)
            note(Measuring(number + 1, len(wanted), stake.probe.op, rows))
            if time.monotonic() - kept > _KEEP_SECONDS:
                self._keep()
                kept = time.monotonic()
        self._keep()
        note(Measuring(len(wanted), len(wanted), is_over=True))

    def _keep(self) -> None:
        for costs in self._all_costs:
            costs.keep()

    def _measure_one(
        self, stake: Stake, low_dtype: str, left: float
    ) -> tuple[Measured, ...]:
        probe, costs = stake.probe, self._costs_at(stake)
        assert costs is not None, "not wanted: the device is not present"
        dtypes = dtypes_of(probe, low_dtype)
        device = local_device(stake.device) or f"/device:{costs.device_type}:0"
        seconds = min(max(_SHARE_OF_PROBE * left, _LEAST_SECONDS), left)
        seconds = min(seconds, _LONGEST_PROBE_SECONDS)
        rows = measure_here(probe, dtypes, device, seconds)
        costs.add(rows)
        if seconds >= _AMPLE_SECONDS:
            missing = set(dtypes) - {row.dtype for row in rows}
            costs.failed.update((probe.key, dtype) for dtype in missing)
        return rows
