"""Run whole steps of a graph before and after its rewrite, in turn, in a sandbox.

The program notices nothing of it, and need not run.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf

from grappler_pass.graph.view import device_type_of
from grappler_pass.planning.draft import Trial
from tf_amp.measuring.sandbox import memory
from tf_amp.measuring.sandbox.contents import Content
from tf_amp.measuring.sandbox.graph_copy import (
    NotRunnableError,
    Sandbox,
    sandbox_from_graph,
)
from tf_amp.measuring.sandbox.session import SandboxSession, opened, run_separately
from tf_amp.measuring.steps.comparison import Comparison
from tf_amp.rewriting.graph_settings import target_device_type
from tf_amp.tracing.grappler_preview import with_bodies
from tf_amp.tracing.traces import with_traced_shapes

BEFORE, AFTER = "before", "after"

_MOST_PAIRS = 400
_FEWEST_PAIRS = 2
_WARM_UPS, _WARM_UP_SECONDS = 3, 0.05
# The first step takes longer: kernels are prepared and memory is allocated.
_FIRST_STEP = 2.0
# A busy machine takes longer than predicted.
_SLACK = 1.5
# Seconds to build, by node of both graphs.
_NODE_SECONDS = 3e-5
# Where there is no limit.
_LONGEST_SECONDS = 120.0


def measure(trial: Trial, seconds: float) -> Comparison:
    """Run both graphs in turn for about `seconds`.

    Raises:
      NotRunnableError: a graph cannot be run outside of its program, or not in time,
        or it needs too much memory; the message says which.
    """
    seconds = min(seconds, _LONGEST_SECONDS)
    _check_predicted(trial, seconds)
    return run_separately(lambda stopped: _compared(trial, seconds, stopped), seconds)


def sandboxes_of(trial: Trial) -> dict[str, Sandbox]:
    """Return both graphs' sandboxes."""
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
            raise NotRunnableError(
                f"a copy of its variables takes {size >> 20} MiB of {device_type} "
                f"memory, and running it {peak >> 20} MiB"
            )


def _compared(trial: Trial, seconds: float, stopped: Callable[[], bool]) -> Comparison:
    end = time.perf_counter() + seconds
    pairs: list[tuple[float, float]] = []
    with opened(sandboxes_of(trial), _left(end)) as session:
        with contextlib.suppress(tf.errors.DeadlineExceededError):
            for pair in _pairs(session, end):
                pairs.append(pair)
                if stopped():
                    break
    if len(pairs) < _FEWEST_PAIRS:
        raise NotRunnableError("its steps take longer than there is time")
    return Comparison(tuple(pairs))


def _left(end: float) -> float:
    return max(end - time.perf_counter(), 1e-3)


def _check_predicted(trial: Trial, seconds: float) -> None:
    """Raise where building and the fewest runs will surely take too long."""
    step = trial.seconds_before + trial.seconds_after
    building = _NODE_SECONDS * (len(trial.before.node) + len(trial.after.node))
    if building + _SLACK * (_FIRST_STEP + _FEWEST_PAIRS) * step > seconds:
        raise NotRunnableError(
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
