"""Run a job: its processes compile side by side, and are timed one at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.gpu.figures import Figures, FirstSteps, Measured
from benchmarks.gpu.jobs import Job
from benchmarks.living import LivingProcess, take_turns
from tf_amp.report.codec import from_plain

# That a process may take for its first steps.
_LONGEST_START_SECONDS = 200.0
_NOTE = "tf-amp: "
_LONGEST_NOTE = 300


def measured(
    job: Job,
    settings: Sequence[str],
    environment: Mapping[str, str],
    *,
    rounds: int,
    seconds: float,
    until: float,
) -> Measured | None:
    """Return what the variants of a job come to; None if time is up meanwhile.

    Args:
      job: what is measured.
      settings: of ``benchmarks.gpu.worker``, which all processes share.
      environment: of the processes.
      rounds: in each of which every variant is timed once, in turns.
      seconds: for which a variant is timed in a round.
      until: on the clock of `time.monotonic`, when first steps are to be done.
    """
    if time.monotonic() >= until:
        return None
    processes = [_Process(job, name, settings, environment) for name in job.variants]
    try:
        longest = min(_LONGEST_START_SECONDS, until - time.monotonic())
        with ThreadPoolExecutor(len(processes)) as pool:
            started = pool.map(lambda each: each.start(longest), processes)
            if not all(started) and time.monotonic() >= until:
                return None
        living = [each.living for each in processes]
        take_turns(living, rounds=rounds, seconds=seconds)
        return Measured(job, tuple(each.figures() for each in processes))
    finally:
        for process in processes:
            process.living.end()


class _Process:
    """A process of ``benchmarks.gpu.worker`` with what its first steps showed."""

    def __init__(
        self,
        job: Job,
        variant: str,
        settings: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._variant = variant
        self._first: FirstSteps | None = None
        how = ("--compiled",) if job.is_compiled else ()
        words = (job.model, variant, *settings, *how)
        self.living = LivingProcess("gpu.worker", words, environment)

    def start(self, longest: float) -> bool:
        """Wait so long for its first steps; return whether they were done."""
        if line := self.living.first_line(longest):
            self._first = from_plain(FirstSteps, json.loads(line))
        return self._first is not None

    def figures(self) -> Figures:
        """Return what it has measured, and how it ended if it did."""
        lines = self.living.errors().splitlines()
        notes = [line for line in lines if line.startswith(_NOTE)]
        return Figures(
            self._variant,
            self._first,
            tuple(self.living.seconds),
            notes[0].removeprefix(_NOTE)[:_LONGEST_NOTE] if notes else "",
            self.living.failure(),
        )
