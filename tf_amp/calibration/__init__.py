"""Measure the present device, so that every decision is priced by what it costs here.

Decides what is measured in the time given and how the result is kept. Which ops and
sizes: ``cases``. How one op is timed: ``timing``.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import rich.progress
import tensorflow as tf

from grappler_pass.costs import (
    DeviceKey,
    DeviceProfile,
    choose_profile,
    keep_profile,
)
from tf_amp.calibration.assembling import Measurements, classes_from, roofline_from
from tf_amp.calibration.cases import Case, Point, points_of
from tf_amp.calibration.layout import COARSE, FINE, Sizes, all_cases
from tf_amp.calibration.starting import call_seconds
from tf_amp.calibration.timing import Turns, measure

__all__ = ["COARSE", "FINE", "Sizes", "calibrate", "measure_cases", "measure_into"]

_FIRST_TURNS = Turns(seconds=0.004, least=3)
_LATER_TURNS = Turns(seconds=0.02, least=5)
# By how much a later measurement takes longer than the first, at most.
_MORE_TURNS = _LATER_TURNS.seconds / _FIRST_TURNS.seconds
_BASIC_CLASSES = frozenset({"AddV2", "matmul"})


def calibrate(
    seconds: float = 60.0,
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    *,
    key: DeviceKey,
    sizes: Sizes = COARSE,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
) -> DeviceProfile:
    """Measure this CPU and keep its profile.

    Args:
        seconds: time for all of it; classes that do not fit are taken from the shipped
            profile of the nearest device. Products and additions are measured once,
            whatever that takes: the roofline is made of them.
        out: file to write; None keeps nothing.
        progress: whether to show a progress bar.
        key: of this device, by which the profile is found again.
        sizes: how densely each class is measured.
        dtypes: to measure; float32 must be among them.

    Returns:
        The profile, also when it could not be written (a warning says why).
    """
    end = time.perf_counter() + seconds
    cases = all_cases(sizes)
    starting = call_seconds()
    left = end - time.perf_counter()
    with _bar(progress, left) as advance:
        measured = measure_cases(cases, dtypes, left, advance)
    data = _profile(cases, measured, key, seconds)
    profile = DeviceProfile.from_json({**data, "call_seconds": starting})
    if out is not None:
        keep_profile(profile, Path(out))
    return profile


def measure_cases(
    cases: Sequence[Case],
    dtypes: Sequence[str],
    seconds: float,
    advance: Callable[[str, float], None] = lambda op_class, elapsed: None,
) -> Measurements:
    """Time every point of every case, again and again while time is left.

    The least of all rounds counts: what disturbs a measurement only adds to it. Cases
    come in the order given, so that the first are the last to be missing. What may
    take longer than the time that is left is not begun: what was never measured as long
    as the dearest so far, the rest as long as before.
    """
    start = time.perf_counter()
    items = [(case, point) for case in cases for point in points_of(case)]
    dearest, longest = 0.0, [0.0] * len(items)
    least: Measurements = {}
    for turns in itertools.chain([_FIRST_TURNS], itertools.repeat(_LATER_TURNS)):
        first = turns is _FIRST_TURNS
        for number, (case, point) in enumerate(items):
            begin = time.perf_counter() - start
            fits = begin + (dearest if first else longest[number]) < seconds
            if not (fits or first):
                return least
            # The roofline needs the basic classes, whatever they take.
            if not (fits or case.op_class in _BASIC_CLASSES):
                continue
            advance(case.op_class, min(begin, seconds))
            measure_into(least, case, point, dtypes, turns)
            took = time.perf_counter() - start - begin
            dearest = max(dearest, took)
            longest[number] = took * (_MORE_TURNS if first else 1.0)
    return least


def measure_into(
    least: Measurements,
    case: Case,
    point: Point,
    dtypes: Sequence[str],
    turns: Turns,
) -> None:
    """Time ``case`` at ``point`` in each dtype; keep the less of new and known."""
    for name in dtypes if case.label is None else (case.label,):
        source = name.split(">")[0]
        if source not in dtypes or name.split(">")[-1] not in dtypes:
            continue
        seconds = measure(case, point, source, turns)
        if seconds is not None:
            place = (case.op_class, name, point)
            least[place] = min(seconds, least.get(place, seconds))


def _profile(
    cases: Sequence[Case], measured: Measurements, key: DeviceKey, seconds: float
) -> dict[str, Any]:
    classes = classes_from(cases, measured)
    nearest = choose_profile(key.flags, key.onednn)
    threads = f"{key.threads} threads, oneDNN {'on' if key.onednn else 'off'}"
    return {
        "format": 1,
        "name": "calibrated",
        "kind": "cpu",
        "description": f"{key.model}, {threads}, measured",
        "provenance": {
            "date": datetime.date.today().isoformat(),
            "device": f"{key.model}, {threads}",
            "how": f"tf-amp calibrate, {seconds:.0f} seconds",
            "tensorflow": tf.__version__,
        },
        "device": key.to_json(),
        "extends": nearest,
        "scale": _scale(measured, DeviceProfile.load(nearest)),
        "roofline": roofline_from(classes),
        "classes": classes,
    }


def _scale(measured: Measurements, other: DeviceProfile) -> float:
    """Return how many times as long this device takes as the ``other``."""
    ratios = [
        seconds / grid.seconds(point)
        for (op_class, dtype, point), seconds in measured.items()
        if (grid := other.grid(op_class, dtype)) is not None
    ]
    return statistics.median(ratios) if ratios else 1.0


@contextlib.contextmanager
def _bar(visible: bool, seconds: float) -> Iterator[Callable[[str, float], None]]:
    if not visible:
        yield lambda op_class, elapsed: None
        return
    with rich.progress.Progress(
        rich.progress.TextColumn("calibrating"),
        rich.progress.BarColumn(),
        rich.progress.TimeRemainingColumn(),
        rich.progress.TextColumn("{task.description}"),
    ) as bar:
        task = bar.add_task("", total=seconds)
        yield lambda op_class, elapsed: bar.update(
            task, completed=elapsed, description=op_class
        )
        bar.update(task, completed=seconds, description="done")
