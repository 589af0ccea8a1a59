"""The largest batch whose step fits into a limit of memory, for each method.

Each try is a process of its own whose tensors have no more room than the limit: on CPUs
those of TensorFlow's best-fit allocator, on GPUs those of each logical device.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping

from rich.text import Text

from tf_amp.errors import ConfigError
from tf_amp.report.display import FittedTable, show
from tf_amp.run import progress
from tf_amp.tools.bench.job import AGAIN, BenchJob, Run
from tf_amp.tools.bench.journal import MEMORY, lines_of
from tf_amp.tools.bench.record import JOURNAL, sample_of_run

MEBI = 2**20
# How near the largest batch is looked for, as a share of it.
NEAR = 0.05
# Some of TensorFlow's code does not ask whether it was given what it asked for, and is
# ended by a signal.
_NO_ROOM = re.compile(r"ResourceExhausted|OOM when|out of memory|^ended by SIG")
_TITLES = ("method", "largest batch", "of float32", "step ms", "items/s")


@dataclasses.dataclass(frozen=True)
class Largest:
    """What one method fits into the limit; a batch of 0: nothing.

    Attributes:
      method: its name.
      batch: examples in a step.
      seconds: of a step of these.
    """

    method: str
    batch: int
    seconds: float | None

    @property
    def items_per_second(self) -> float | None:
        """Examples per second, at that batch."""
        return self.batch / self.seconds if self.seconds else None


def largest_batch(
    taken: Callable[[int], int | None],
    limit: int,
    first: int,
    known: Mapping[int, int] | None = None,
) -> int:
    """Return the largest batch that fits, within a share of it; 0 if none does.

    One that is larger by that share, or by one, had no room. Memory is taken to grow by
    the same with each example, until a batch has no room.

    Args:
      taken: returns the bytes that a batch takes; None if it has no room.
      limit: bytes that there are.
      first: the batch that is tried first, where nothing is known.
      known: bytes that batches take, as far as that is known; 0 is one of them.
    """
    sizes = {0: 0} if known is None else dict(known)
    fits, fails, width = 0, None, NEAR
    batch = first if known is None else _expected(sizes, limit)
    while fails is None or fails - fits > max(1, NEAR * fits):
        size = taken(batch)
        if size is None:
            fails = batch
        else:
            fits = batch
            sizes[batch] = size
        if fails is None:
            batch = max(int(fits * (1.0 + NEAR)) + 1, _expected(sizes, limit))
        elif fits == 0:
            batch = max(1, int(fails * (1.0 - width)))
            width = min(2.0 * width, 0.75)
        else:
            batch = (fits + fails) // 2
        if fails == 1:
            break
    return fits


def _expected(sizes: Mapping[int, int], limit: int) -> int:
    """Return the batch that the two largest lead to; at most eight times the last."""
    (small, less), (large, more) = sorted(sizes.items())[-2:]
    each = (more - less) / (large - small)
    room = limit - more
    return max(1, large + int(min(room / each, 7 * large))) if each > 0 else 2 * large


def largest_batches(
    job: BenchJob, mebibytes: int, stop: threading.Event
) -> Iterator[Largest]:
    """Yield what each method fits into so many mebibytes, by the first of the batches.

    Raises:
      ConfigError: a process failed for another reason than memory.
      KeyboardInterrupt: `stop` was set; no process is left.
    """
    methods = [method for method in job.methods if method != AGAIN]
    (first,) = job.batches
    assert first is not None
    with tempfile.TemporaryDirectory(prefix="tf-amp-bench-") as folder:
        for number, method in enumerate(methods):
            progress.report(method, number, len(methods))
            tries = _Tries(job, method, mebibytes, pathlib.Path(folder), stop)
            batch = largest_batch(tries.taken, mebibytes * MEBI, first)
            yield Largest(method, batch, tries.seconds.get(batch))


@dataclasses.dataclass
class _Tries:
    """The processes of one method; `seconds` are those of a step, by batch."""

    job: BenchJob
    method: str
    mebibytes: int
    folder: pathlib.Path
    stop: threading.Event
    seconds: dict[int, float] = dataclasses.field(default_factory=dict)

    def taken(self, batch: int) -> int | None:
        """Return the bytes of tensors that a batch takes; None if it has no room.

        They are 0 where they are not known: a process was ended before its end.
        """
        run = Run(self.method, batch, 0)
        sample = sample_of_run(self.job, run, self.folder, self.stop, self.mebibytes)
        if sample.is_measured and not sample.failure:
            self.seconds[batch] = sample.seconds
            lines = lines_of(self.folder / JOURNAL)
            return max((line[1] for line in lines if line[0] == MEMORY), default=0)
        if not _NO_ROOM.search(f"{sample.failure} {sample.traceback}"):
            raise ConfigError(f"{run}: {sample.failure}.")
        return None


def print_largest(job: BenchJob, mebibytes: int, found: list[Largest]) -> None:
    """Print a table of what methods fit into a limit."""
    float32 = found[0].batch
    rows = []
    for each in found:
        rate = each.items_per_second
        rows.append(
            (
                each.method,
                str(each.batch) if each.batch else "none",
                f"{each.batch / float32:.2f}" if float32 else "-",
                f"{each.seconds * 1e3:.4g}" if each.seconds else "-",
                f"{rate:.4g}" if rate else "-",
            )
        )
    title = f"{job.target.title}, {job.mode}, tensors of {mebibytes} MiB at most"
    table = FittedTable(_TITLES, rows, numbers=_TITLES[1:], has_rule=False)
    show(Text(title, style="bold"), table)
    print(f"A batch larger by {NEAR:.0%}, or by one example, had no room when tried.")
