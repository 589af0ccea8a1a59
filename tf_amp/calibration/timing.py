"""Seconds of one op inside a graph, on the present device.

An op is run several times in a row, each run waiting for the one before, on inputs held
in variables; an empty graph is timed in turn with it and subtracted. TensorFlow's graph
optimizations are off, so that the op stays as written, while oneDNN's rewriting of
kernels happens as in any program. The least of several turns counts: what disturbs a
measurement only ever adds to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_amp.calibration.cases import Build, Case, Point

LEAST_SECONDS = 1e-7
_INPUT_SETS = 2
_CHAIN_SECONDS = 4e-4
_LONGEST_CHAIN = 24
# What is subtracted must not be the disturbed one of two.
_BASE_RUNS = 12


@dataclass(frozen=True)
class Turns:
    """How often one op is timed: at least ``least`` times, for about ``seconds``."""

    seconds: float
    least: int = 4


@dataclass(frozen=True)
class _Chain:
    """Runs of one op in a row, and the same graph without them."""

    run: Callable[[], object]
    base: Callable[[], object]
    length: int


@contextmanager
def _chain(
    build: Build, case: Case, point: Point, dtype: str, length: int
) -> Iterator[_Chain]:
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default(), graph.device("/CPU:0"):
        variables = [
            [_variable(shape, dtype) for shape in case.shapes(point)]
            for _ in range(_INPUT_SETS)
        ]
        reads = [[value.read_value() for value in group] for group in variables]
        with graph.control_dependencies([read.op for group in reads for read in group]):
            base = last = tf.no_op()
        for index in range(length):
            with graph.control_dependencies([last]):
                last = build(*reads[index % _INPUT_SETS], point=point).op
        fill = v1.global_variables_initializer()
    with v1.Session(graph=graph, config=_plain_session()) as session:
        session.run(fill)
        yield _Chain(session.make_callable(last), session.make_callable(base), length)


def _variable(shape: Sequence[int], dtype: str) -> Any:
    # Ones and a bit: no denormals, and defined under logarithm and root.
    start = tf.constant(1.125, dtype)
    return tf.compat.v1.Variable(tf.fill(tuple(shape), start), use_resource=True)


def _plain_session() -> Any:
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    return config


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
    with _chain(build, case, point, dtype, _length(case, point)) as chain:
        chain.run()
        with_ops: list[float] = []
        without = [_elapsed(chain.base) for _ in range(_BASE_RUNS)]
        end = time.perf_counter() + turns.seconds
        while len(with_ops) < turns.least or time.perf_counter() < end:
            with_ops.append(_elapsed(chain.run))
            without.append(_elapsed(chain.base))
    return (min(with_ops) - min(without)) / chain.length


def _elapsed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _length(case: Case, point: Point) -> int:
    elements = sum(math.prod(shape) for shape in case.shapes(point))
    guess = 2e-6 + case.flops(point) / 1e11 + elements / 3e9
    return int(min(max(_CHAIN_SECONDS / guess, 1), _LONGEST_CHAIN))
