"""Time every point of every case, in rounds, within the time that there is.

One op is timed by turns of a chain, of which the median counts: what disturbs a
program's ops now and then is part of its step. What the clock cannot tell from nothing
in a round is no reading.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf_amp.measuring import progress
from tf_amp.measuring.device_profile.assembling import Measurements, Rounds, medians_of
from tf_amp.measuring.device_profile.cases import Build, Case, Point, points_of
from tf_amp.measuring.op_timing import (
    Reading,
    chain_length,
    elapsed,
    timing_graph,
)


@dataclass(frozen=True)
class Turns:
    """How often one op is timed: at least ``least`` times, for about ``seconds``."""

    seconds: float
    least: int = 4


_FIRST_TURNS = Turns(seconds=0.004, least=3)
_LATER_TURNS = Turns(seconds=0.02, least=5)
# By how much a later measurement takes longer than the first, at most.
_MORE_TURNS = _LATER_TURNS.seconds / _FIRST_TURNS.seconds
_BASIC_CLASSES = frozenset({"AddV2", "matmul"})
# What is needed is measured again so often where a busy machine hides it.
_MOST_TRIES = 8
_INPUT_SETS = 2
# What is subtracted must not be a disturbed one.
_BASE_RUNS = 12


def measure_cases(
    cases: Sequence[Case],
    dtypes: Sequence[str],
    seconds: float,
) -> Measurements:
    """Time every point of every case, again and again while time is left.

    The median of all rounds counts. Cases come in the order given, so that the first
    are the last to be missing. What may take longer than the time that is left is not
    begun: what was never measured as long as the dearest so far, the rest as long as
    before.
    """
    start = time.perf_counter()
    total = int(seconds) if math.isfinite(seconds) else None
    items = [(case, point) for case in cases for point in points_of(case)]
    dearest, longest = 0.0, [0.0] * len(items)
    found: Rounds = {}
    for turns in itertools.chain([_FIRST_TURNS], itertools.repeat(_LATER_TURNS)):
        first = turns is _FIRST_TURNS
        for number, (case, point) in enumerate(items):
            begin = time.perf_counter() - start
            fits = begin + (dearest if first else longest[number]) < seconds
            if not (fits or first):
                return medians_of(found)
            # The roofline needs the basic classes, whatever they take.
            if not (fits or case.op_class in _BASIC_CLASSES):
                continue
            progress.report(f"calibrating {case.op_class}", int(begin), total)
            measure_into(found, case, point, dtypes, turns)
            took = time.perf_counter() - start - begin
            dearest = max(dearest, took)
            longest[number] = took * (_MORE_TURNS if first else 1.0)
    return medians_of(found)


def measure_into(
    found: Rounds,
    case: Case,
    point: Point,
    dtypes: Sequence[str],
    turns: Turns,
) -> None:
    """Time ``case`` at ``point`` in each dtype, and add what it takes."""
    for name in dtypes if case.label is None else (case.label,):
        source = name.split(">")[0]
        if source not in dtypes or name.split(">")[-1] not in dtypes:
            continue
        place = (case.op_class, name, point)
        is_needed = case.op_class in _BASIC_CLASSES and place not in found
        again = [_LATER_TURNS] * _MOST_TRIES if is_needed else []
        for each in (turns, *again):
            seconds = _measured(case, point, source, each)
            if seconds is not None:
                found.setdefault(place, []).append(seconds)
                break


def _measured(case: Case, point: Point, dtype: str, turns: Turns) -> float | None:
    """Return seconds of one call in ``dtype``.

    None where there is no such kernel, or its seconds are no more than noise.
    """
    try:
        reading = _reading(case.build, case, point, dtype, turns)
        if reading is not None and case.minus is not None:
            less = _reading(case.minus, case, point, dtype, turns)
            reading = less and reading.minus(less)
    except (tf.errors.OpError, TypeError, ValueError):
        return None
    return reading and reading.seconds


def _reading(
    build: Build, case: Case, point: Point, dtype: str, turns: Turns
) -> Reading | None:
    kept = tf.as_dtype(dtype).as_numpy_dtype
    with timing_graph("/CPU:0") as graph:
        # Ones and a bit: no denormals, and defined under logarithm and root.
        sets = [
            graph.hold([np.full(shape, 1.125, kept) for shape in case.shapes(point)])
            for _ in range(_INPUT_SETS)
        ]
        chain = graph.chain(
            lambda inputs: build(*inputs, point=point).op, sets, _length(case, point)
        )
        graph.fill()
        chain.run()
        chain.bases += [elapsed(chain.base) for _ in range(_BASE_RUNS)]
        end = time.perf_counter() + turns.seconds
        while len(chain.runs) < turns.least or time.perf_counter() < end:
            chain.turn()
    return chain.reading()


def _length(case: Case, point: Point) -> int:
    elements = sum(math.prod(shape) for shape in case.shapes(point))
    guess = 2e-6 + case.flops(point) / 1e11 + elements / 3e9
    return chain_length(guess)
