"""Run a graph before and after its rewrite, in turn, and tell which is faster.

Both are run in a sandbox, so that the program notices nothing. The median of the ratios
of neighboring runs counts: what slows the machine down for a while slows both. Faster
is what is faster beyond doubt and by more than nothing worth mentioning; a tie goes to
float32, whose graph is then the one given, byte for byte.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import tensorflow as tf

from grappler_pass.draft import Trial
from grappler_pass.graph import device_type_of
from tf_amp.checking.traces import with_traced_shapes
from tf_amp.configuration.settings import target_device_type
from tf_amp.function_graphs import with_bodies
from tf_amp.tuning import memory
from tf_amp.tuning.apart import Stuck, run_apart
from tf_amp.tuning.contents import Content
from tf_amp.tuning.sandbox import NotRunnable, Sandbox, sandbox_from_graph
from tf_amp.tuning.sandbox_session import SandboxSession, opened

BEFORE, AFTER = "before", "after"

# The logarithm of a ratio under which a difference is not worth a changed graph.
LEAST_GAIN = 0.02
# A verdict is looked for after every pair: two deviations would be found by chance.
_DEVIATIONS = 3.0
# Standard error of a median, over that of a mean.
_MEDIAN = 1.25
_FEW = 5
_LEAST_SPREAD = {True: 0.03, False: 0.01}
_MOST_PAIRS = 400
_FEWEST_PAIRS = 2
# Quick steps are cheap to repeat and easily disturbed: fewer pairs decide only once
# they have taken so long.
_PAIRS, _PAIRS_SECONDS = 12, 0.5
_WARM_UPS, _WARM_UP_SECONDS = 3, 0.05
# The first step takes longer: kernels are prepared and memory is allocated.
_FIRST_STEP = 2.0
# A busy machine takes longer than predicted.
_SLACK = 1.5
# Seconds to build, by node of both graphs.
_NODE_SECONDS = 3e-5
_PATIENCE_SECONDS = 60.0
# Where there is no limit.
LONGEST_SECONDS = 120.0


class TooLong(NotRunnable):
    """The steps of a graph are predicted to take longer than there is time."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Times of two graphs, run in turn.

    Attributes:
      pairs: seconds of one step before and after the rewrite, of neighboring runs.
    """

    pairs: tuple[tuple[float, float], ...]

    @property
    def seconds_before(self) -> float:
        """Median seconds of a step before the rewrite."""
        return statistics.median(before for before, _ in self.pairs)

    @property
    def seconds_after(self) -> float:
        """Median seconds of a step after it."""
        return statistics.median(after for _, after in self.pairs)

    @property
    def ratio(self) -> float:
        """Median of seconds before over seconds after: above 1 is faster."""
        return math.exp(statistics.median(self._logs))

    @property
    def error(self) -> float:
        """Standard error of the logarithm of the ratio."""
        logs = self._logs
        middle = statistics.median(logs)
        spread = 1.4826 * statistics.median(abs(each - middle) for each in logs)
        spread = max(spread, _LEAST_SPREAD[len(logs) < _FEW])
        return _MEDIAN * spread / math.sqrt(len(logs))

    @property
    def is_faster(self) -> bool | None:
        """Whether the rewrite pays; None where the runs leave it open."""
        took = sum(map(sum, self.pairs))
        fewest = _FEWEST_PAIRS if took > _PAIRS_SECONDS else _PAIRS
        if len(self.pairs) < fewest:
            return None
        middle, doubt = math.log(self.ratio), _DEVIATIONS * self.error
        if middle > LEAST_GAIN and middle - doubt > 0.0:
            return True
        return False if middle + doubt < LEAST_GAIN else None

    def __str__(self) -> str:
        """Return one line for the log."""
        return (
            f"{self.ratio:.3f}x ({self.seconds_before * 1e3:.3g} -> "
            f"{self.seconds_after * 1e3:.3g} ms, {len(self.pairs)} pairs)"
        )

    @property
    def _logs(self) -> list[float]:
        return [math.log(before / after) for before, after in self.pairs]


def compare(trial: Trial, seconds: float) -> Comparison:
    """Run both graphs in turn until one is faster beyond doubt, or time is over.

    Args:
      trial: what to run.
      seconds: how long this may take; a little more where it was predicted wrong.

    Raises:
      NotRunnable: a graph cannot be run apart from its program, or not in time, or it
        needs too much memory; the message says which.
    """
    return _apart(trial, seconds, until_decided=True)


def measure(trial: Trial, seconds: float) -> Comparison:
    """Run both graphs in turn for about `seconds`, whichever is faster.

    Raises:
      NotRunnable: as for `compare`.
    """
    return _apart(trial, seconds, until_decided=False)


def sandboxes_of(trial: Trial) -> dict[str, Sandbox]:
    """Return both graphs' sandboxes.

    Raises:
      NotRunnable: a graph cannot be run, or would take too much memory.
    """
    # Grappler knows neither what the functions do that it leaves, nor what they return.
    shapes = with_traced_shapes(trial.before, trial.shapes)
    boxes = {
        name: sandbox_from_graph(with_bodies(graph_def), trial.item, shapes)
        for name, graph_def in ((BEFORE, trial.before), (AFTER, trial.after))
    }
    contents = {c.name: c for box in boxes.values() for c in box.contents}
    _check_memory(contents.values(), trial)
    return boxes


def _check_memory(contents: Iterable[Content], trial: Trial) -> None:
    """Raise where a device has no room for what it holds while the graphs run."""
    # Results lie on the device that computes them.
    computing = target_device_type(trial.before)
    held = collections.Counter({f"/device:{computing}:0": 0})
    for content in contents:
        held[content.device or f"/device:{computing}:0"] += content.size_bytes
    for device, size in held.items():
        device_type = device_type_of(device)
        peak = trial.peak_bytes if device_type == computing else 0
        if size + peak > memory.most_bytes(device_type):
            raise NotRunnable(
                f"a copy of its variables takes {size >> 20} MiB of {device_type} "
                f"memory, and running it {peak >> 20} MiB"
            )


def _apart(trial: Trial, seconds: float, *, until_decided: bool) -> Comparison:
    seconds = min(seconds, LONGEST_SECONDS)
    check_predicted(trial, seconds)

    def work(stopped: Callable[[], bool]) -> Comparison:
        def is_enough(pairs: Sequence[tuple[float, float]]) -> bool:
            decided = Comparison(tuple(pairs)).is_faster is not None
            return stopped() or (until_decided and decided)

        return _compare(trial, seconds, is_enough)

    try:
        return run_apart(work, seconds + _PATIENCE_SECONDS)
    except (tf.errors.OpError, ValueError, Stuck) as error:
        message = str(error).partition("\n")[0]
        raise NotRunnable(f"it does not run apart: {message}") from error


def _compare(
    trial: Trial,
    seconds: float,
    is_enough: Callable[[Sequence[tuple[float, float]]], bool],
) -> Comparison:
    end = time.perf_counter() + seconds
    pairs: list[tuple[float, float]] = []
    boxes = sandboxes_of(trial)
    with opened(boxes, _left(end)) as session:
        with contextlib.suppress(tf.errors.DeadlineExceededError):
            for pair in _pairs(session, end):
                pairs.append(pair)
                if is_enough(pairs):
                    break
    if len(pairs) < _FEWEST_PAIRS:
        raise NotRunnable("its steps take longer than there is time")
    return Comparison(tuple(pairs))


def _left(end: float) -> float:
    return max(end - time.perf_counter(), 1e-3)


def check_predicted(trial: Trial, seconds: float) -> None:
    """Raise where building and the fewest runs will surely take too long.

    Raises:
      TooLong: they will; parts of the graph may be run instead.
    """
    step = trial.seconds_before + trial.seconds_after
    building = _NODE_SECONDS * (len(trial.before.node) + len(trial.after.node))
    if building + _SLACK * (_FIRST_STEP + _FEWEST_PAIRS) * step > seconds:
        raise TooLong(
            f"a step takes about {trial.seconds_before:.2g} s, and {seconds:.2g} s are "
            "left"
        )


def _pairs(session: SandboxSession, end: float) -> Iterator[tuple[float, float]]:
    """Yield seconds of neighboring runs, each first in turn, while the time lasts."""
    for _ in range(_WARM_UPS):
        slowest = sum(session.seconds(name, _left(end)) for name in (BEFORE, AFTER))
        if slowest > _WARM_UP_SECONDS:
            break
    # The first one is among the slowest.
    slowest /= _FIRST_STEP
    for number in range(_MOST_PAIRS):
        if max(_FEWEST_PAIRS - number, 1) * slowest > _left(end):
            return
        order = (BEFORE, AFTER) if number % 2 else (AFTER, BEFORE)
        took = {name: session.seconds(name, _left(end) + slowest) for name in order}
        slowest = sum(took.values())
        yield took[BEFORE], took[AFTER]
