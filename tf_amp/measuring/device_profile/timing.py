"""Seconds of one class of ops at one size, on the present CPU.

The median of several turns counts, as it does where prices are measured for a graph:
what disturbs a program's ops now and then is part of its step.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf_amp.measuring.device_profile.cases import Build, Case, Point
from tf_amp.measuring.op_timing import elapsed, timing_graph

LEAST_SECONDS = 1e-7
_INPUT_SETS = 2
_CHAIN_SECONDS = 4e-4
_LONGEST_CHAIN = 24
# What is subtracted must not be a disturbed one.
_BASE_RUNS = 12


@dataclass(frozen=True)
class Turns:
    """How often one op is timed: at least ``least`` times, for about ``seconds``."""

    seconds: float
    least: int = 4


def measure(case: Case, point: Point, dtype: str, turns: Turns) -> float | None:
    """Return seconds of one call in ``dtype``; None where there is no such kernel."""
    try:
        seconds = _seconds(case.build, case, point, dtype, turns)
        if case.minus is not None:
            seconds -= _seconds(case.minus, case, point, dtype, turns)
    except (tf.errors.OpError, TypeError, ValueError):
        return None
    return max(seconds, LEAST_SECONDS)


def _seconds(build: Build, case: Case, point: Point, dtype: str, turns: Turns) -> float:
    def values() -> list[Any]:
        # Ones and a bit: no denormals, and defined under logarithm and root.
        kept = tf.as_dtype(dtype).as_numpy_dtype
        return [np.full(shape, 1.125, kept) for shape in case.shapes(point)]

    with timing_graph("/CPU:0") as graph:
        sets = [graph.hold(values()) for _ in range(_INPUT_SETS)]
        chain = graph.chain(
            lambda inputs: build(*inputs, point=point).op, sets, _length(case, point)
        )
        graph.fill()
        chain.run()
        with_ops: list[float] = []
        without = [elapsed(chain.base) for _ in range(_BASE_RUNS)]
        end = time.perf_counter() + turns.seconds
        while len(with_ops) < turns.least or time.perf_counter() < end:
            with_ops.append(elapsed(chain.run))
            without.append(elapsed(chain.base))
    median = statistics.median
    return (median(with_ops) - median(without)) / chain.length


def _length(case: Case, point: Point) -> int:
    elements = sum(math.prod(shape) for shape in case.shapes(point))
    guess = 2e-6 + case.flops(point) / 1e11 + elements / 3e9
    return int(min(max(_CHAIN_SECONDS / guess, 1), _LONGEST_CHAIN))
