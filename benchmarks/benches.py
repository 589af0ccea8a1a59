"""The models under several methods, as `tf-amp bench` measures and summarizes them."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from benchmarks.catalog import entry, variant
from tf_amp.run import progress
from tf_amp.tools.bench.job import AGAIN, FLOAT32, FUNCTION, BenchJob, Program
from tf_amp.tools.bench.journal import Sample
from tf_amp.tools.bench.record import (
    BenchRecord,
    BenchRow,
    context_of,
    measured,
    summarized,
)

_BFLOAT16_EPSILON = 2.0**-8
# Losses are means over a batch; outputs carry the rounding of each layer.
TOLERANCES = {"train": 8 * _BFLOAT16_EPSILON, "infer": 32 * _BFLOAT16_EPSILON}
_LONGEST_PROCESS_SECONDS = 900.0
_PEERS = ("keras", "builtin")


@dataclass(frozen=True)
class Bench:
    """All variants of one model in one mode."""

    model: str
    mode: str
    rows: tuple[BenchRow, ...]

    def row(self, name: str) -> BenchRow | None:
        """Return what was measured of a variant, or None."""
        method = variant(name).method
        return next((row for row in self.rows if row.method == method), None)

    @property
    def against_best(self) -> float | None:
        """Time of tf-amp over that of the fastest of float32 and the peers.

        None where one of them was not run.
        """
        return self._against(("float32", *_PEERS))

    @property
    def against_peers(self) -> float | None:
        """Time of tf-amp over that of the faster peer; None where one was not run."""
        return self._against(_PEERS)

    def _against(self, names: Sequence[str]) -> float | None:
        rows = [self.row(name) for name in ("ours", *names)]
        ours, *others = (row.step_seconds if row else None for row in rows)
        # Of those that were run some may have failed.
        times = [seconds for seconds in others if seconds is not None]
        return ours / min(times) if all(rows) and ours and times else None

    def is_wrong(self, row: BenchRow) -> bool:
        """Return whether a variant computed something other than float32."""
        return row.error is not None and not row.error <= TOLERANCES[self.mode]


def job_of(
    model: str,
    mode: str,
    methods: Sequence[str],
    *,
    seconds: float = 0.0,
    learns: bool = True,
) -> BenchJob:
    """Return the measurement of a model in a mode.

    Args:
      model: its name.
      mode: "train" or "infer".
      methods: of `tf-amp bench`, float32 and its repetition first.
      seconds: timed part of a process, which is the later half of its steps.
      learns: whether each process of tf-amp finds what one before it has measured.
    """
    return BenchJob(
        Program(FUNCTION, f"benchmarks.steps:{model}"),
        mode,
        tuple(methods),
        (entry(model).batch(mode),),
        seconds=_LONGEST_PROCESS_SECONDS,
        step_seconds=2.0 * seconds,
        learns=learns,
    )


def record_of(
    job: BenchJob, rounds: int, announce: Callable[[str], None]
) -> BenchRecord:
    """Measure a job, each process announced, and return all of it."""
    record = BenchRecord(job, context_of(job.target))
    with progress.listened_to(lambda what, *_: announce(what)):
        for grown in measured(record, rounds, threading.Event()):
            record = grown
    return record


def bench_of(model: str, mode: str, samples: Sequence[Sample]) -> Bench:
    """Return what the samples of a model in a mode come to."""
    methods = dict.fromkeys((FLOAT32, AGAIN, *(each.method for each in samples)))
    return Bench(model, mode, summarized(job_of(model, mode, [*methods]), samples))


def joined(benches: Iterable[Bench], others: Iterable[Bench]) -> tuple[Bench, ...]:
    """Return benches with the rows of others, compared with their own float32."""
    rows = {
        (bench.model, bench.mode): tuple(
            row for row in bench.rows if row.method not in (FLOAT32, AGAIN)
        )
        for bench in others
    }
    return tuple(
        replace(bench, rows=bench.rows + rows.get((bench.model, bench.mode), ()))
        for bench in benches
    )


def mean_over_peers(benches: Iterable[Bench]) -> float:
    """Return how many times as fast as the better peer tf-amp is, geometric mean.

    Of rows on which both peers were run.
    """
    against = (each.against_peers for each in benches)
    return geometric_mean(1 / ratio for ratio in against if ratio)
