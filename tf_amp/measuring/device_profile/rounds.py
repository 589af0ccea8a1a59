"""Time every point of every case, in rounds, within the time that there is."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from tf_amp.measuring.device_profile.assembling import Measurements, Rounds, medians_of
from tf_amp.measuring.device_profile.cases import Case, Point, points_of
from tf_amp.measuring.device_profile.timing import Turns, measure

_FIRST_TURNS = Turns(seconds=0.004, least=3)
_LATER_TURNS = Turns(seconds=0.02, least=5)
# By how much a later measurement takes longer than the first, at most.
_MORE_TURNS = _LATER_TURNS.seconds / _FIRST_TURNS.seconds
_BASIC_CLASSES = frozenset({"AddV2", "matmul"})


def measure_cases(
    cases: Sequence[Case],
    dtypes: Sequence[str],
    seconds: float,
    advance: Callable[[str, float], None] = lambda op_class, elapsed: None,
) -> Measurements:
    """Time every point of every case, again and again while time is left.

    The median of all rounds counts. Cases come in the order given, so that the first
    are the last to be missing. What may take longer than the time that is left is not
    begun: what was never measured as long as the dearest so far, the rest as long as
    before.
    """
    start = time.perf_counter()
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
            advance(case.op_class, min(begin, seconds))
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
        seconds = measure(case, point, source, turns)
        if seconds is not None:
            place = (case.op_class, name, point)
            found.setdefault(place, []).append(seconds)
