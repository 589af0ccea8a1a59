"""What own steps have shown on each device: verdicts and lessons, in one JSON file.

    {"format": 1, "devices": {DEVICE: {
        "verdicts": {FINGERPRINT: {"graph": ..., "faster": ..., "float32_seconds": ...,
                                   "low_seconds": ..., "when": ...}},
        "learned": {CELL: [LOG OF MEASURED OVER PREDICTED, ...]}}}}

A device is named with all that must agree for its figures to hold. The file may be
carried to another machine. What is not as it should be is left out. A process reads it
once and writes what it adds, with what others have added meanwhile.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from grappler_pass.costs.learned import MOST_LOG_RATIO, Learned, Lesson
from grappler_pass.fork_safety import per_process, renewed_lock
from tf_amp.config import devices
from tf_amp.config.amp_config import AmpConfig
from tf_amp.measuring.kept_file import (
    Fields,
    KeptFile,
    is_line,
    is_number,
    mapping_in,
)

FILE = "verdicts.json"
_PART = "devices"
# Of one device, the latest stay: more graphs than a user has, and more cells.
_MOST_VERDICTS, _MOST_CELLS = 2000, 5000


class Verdict(NamedTuple):
    """Whether a graph was faster in 16 bits.

    Attributes:
      graph: its name, for people.
      faster: whether it was.
      float32_seconds: of a step in float32.
      low_seconds: of a step in 16 bits.
      when: seconds since 1970.
    """

    graph: str
    faster: bool
    float32_seconds: float
    low_seconds: float
    when: float


class StepMemory:
    """What own steps have shown on one device; several threads may use it.

    Attributes:
      device: names it in the file.
      learned: its lessons, which correct prices.
    """

    def __init__(self, device: str, path: pathlib.Path | None) -> None:
        """Read what the file says of a device; None: nothing is kept."""
        self.device = device
        self._file = KeptFile(path, _PART)
        fields = _devices_in(self._file.read()).get(device, {})
        self._faster = {f: v.faster for f, v in verdicts_in(fields).items()}
        self.learned = Learned(lessons_in(fields))

    def is_faster(self, fingerprint: str) -> bool | None:
        """Return whether 16 bits were faster; None where steps have not said."""
        return self._faster.get(fingerprint)

    def decide(self, fingerprint: str, is_faster: bool) -> None:
        """Remember in this process alone which graph is faster."""
        self._faster[fingerprint] = is_faster

    def keep(self, fingerprint: str, verdict: Verdict) -> None:
        """Remember a verdict."""
        self.decide(fingerprint, verdict.faster)

        def add(fields: Fields) -> None:
            verdicts = {**verdicts_in(fields), fingerprint: verdict}
            latest = sorted(verdicts, key=lambda f: verdicts[f].when)[-_MOST_VERDICTS:]
            fields["verdicts"] = {f: verdicts[f]._asdict() for f in latest}

        self._write(add)

    def learn(self, readings: Mapping[str, Sequence[float]]) -> None:
        """Add readings by cell: logarithms of measured over predicted seconds."""
        if not readings:
            return
        self.learned.add(readings)

        def add(fields: Fields) -> None:
            lessons = dict(lessons_in(fields))
            for cell, logs in readings.items():
                # What was learned last is last, and stays.
                lesson = lessons.pop(cell, Lesson())
                lessons[cell] = lesson.with_readings(logs)
            latest = list(lessons)[-_MOST_CELLS:]
            fields["learned"] = {cell: lessons[cell].logs for cell in latest}

        self._write(add)

    def _write(self, add: Callable[[Fields], None]) -> None:
        """Add to what the file says now of this device."""

        def change(fields: Fields) -> None:
            known = _devices_in(fields)
            add(known.setdefault(self.device, {}))
            fields[_PART] = known

        self._file.change(change)


def fields_of(path: pathlib.Path | None) -> dict[str, Fields]:
    """Return what a file says, by device; nothing where it is no such file."""
    return _devices_in(KeptFile(path, _PART).read())


def _devices_in(fields: Fields) -> dict[str, Fields]:
    devices = mapping_in(fields, _PART).items()
    return {k: v for k, v in devices if is_line(k) and isinstance(v, dict)}


def verdicts_in(fields: Fields) -> Mapping[str, Verdict]:
    """Return the verdicts of one device by fingerprint."""
    found = {}
    for fingerprint, values in mapping_in(fields, "verdicts").items():
        if isinstance(values, dict) and values.keys() == set(Verdict._fields):
            verdict = Verdict(**values)
            numbers = (verdict.float32_seconds, verdict.low_seconds, verdict.when)
            is_said = type(verdict.faster) is bool and is_line(verdict.graph)
            if is_said and all(map(is_number, numbers)):
                found[fingerprint] = verdict
    return found


def lessons_in(fields: Fields) -> Mapping[str, Lesson]:
    """Return the lessons of one device by cell."""
    return {
        cell: Lesson().with_readings(logs)
        for cell, logs in mapping_in(fields, "learned").items()
        if is_line(cell)
        and isinstance(logs, list)
        and all(is_number(log) and abs(log) <= MOST_LOG_RATIO for log in logs)
    }


def memory_path(cache_dir: pathlib.Path) -> pathlib.Path:
    """Return where the file lies in the user's cache folder."""
    return cache_dir / FILE


def learned_for(config: AmpConfig, device_type: str) -> Learned | None:
    """Return what was learned of this device; None where prices alone decide."""
    if config.tune == "off" or config.device_profile is not None:
        return None
    return memory_of(config.cache_dir, device_type).learned


def memory_of(cache_dir: pathlib.Path | None, device_type: str) -> StepMemory:
    """Return what this process knows of its devices of one type.

    It is read when the first graph arrives, and shared by all graphs from then on.
    """
    # Graphs arrive on several threads at once; the cache alone would give each its own.
    with _lock:
        return _memory_of(cache_dir, device_type)


_lock = renewed_lock()


@functools.cache
def _memory_of(cache_dir: pathlib.Path | None, device_type: str) -> StepMemory:
    import tensorflow as tf

    key = devices.cost_key(devices.device_of_type(device_type))
    path = None if cache_dir is None else memory_path(cache_dir)
    return StepMemory(f"{key}, TensorFlow {tf.version.VERSION}", path)


# What a parent has found out since is in the file.
per_process(_memory_of.cache_clear)
