"""Which graph is faster: remembered from earlier runs, or found out by the next steps.

A verdict is kept by the fingerprint of its graphs, so that steps are compared once, not
in every process. What their profiled calls teach about prices is kept beside it.
Grappler's second visit of a graph that has lost, which differs a little, does not come
here: see `arriving_graphs`.

What own steps have shown on each device: verdicts and lessons, in one JSON file.

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
import itertools
import pathlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from absl import logging
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.costs.model import MOST_LOG_RATIO, Learned, Lesson, log_ratio
from grappler_pass.fork_safety import per_process, renewed_lock
from grappler_pass.graph.op_traits import keeps_state_in_kernel
from grappler_pass.planning.draft import NodePrices, Outcome, Trial
from tf_amp import _tensorflow_private as private
from tf_amp.compare import call_sites
from tf_amp.compare.fingerprint import fingerprint_of
from tf_amp.compare.kept_file import Fields, KeptFile, is_line, is_number, mapping_in
from tf_amp.compare.own_steps import Steps
from tf_amp.config import devices
from tf_amp.config.amp_config import SAVE, AmpConfig
from tf_amp.config.workers import is_joint, peers
from tf_amp.tracing.grappler_preview import with_bodies

FILE = "verdicts.json"
_PART = "devices"
# Of one device, the latest stay: more graphs than a user has, and more cells.
_MOST_VERDICTS, _MOST_CELLS = 2000, 5000
_lock = renewed_lock()


class StepVerdicts(NamedTuple):
    """Verdicts of steps, earlier ones and those to come; of the pass's `OwnSteps`.

    Attributes:
      memory: of the device that the graph runs on.
      memories: by type of device, of all that are present.
      foresees: whether it only says what will be once the graph runs.
      is_alone: whether workers do not compare their steps together, so that each goes
        by its prices.
    """

    memory: StepMemory
    memories: Mapping[str, StepMemory]
    foresees: bool = False
    is_alone: bool = False

    def outcome(self, trial: Trial, decided: Callable[[bool], None]) -> Outcome:
        """Return which of two graphs is faster, or have their steps compared.

        Of workers that train in step the chief decides, about what all of them run.
        What is certain without is not compared, nor is what keeps state in its kernels:
        a second instance would repeat the random numbers of the first, or miss what
        lies in its queues.
        """
        others = peers()
        decides = others and others.is_chief and not self.is_alone
        if others and not (decides and is_joint(trial.before)):
            return Outcome.UNKNOWN
        entry, fingerprint = call_sites.current(), fingerprint_of(trial)
        is_faster = self.memory.is_faster(fingerprint)
        if is_faster:
            entry.accept()
        if is_faster is not None:
            return Outcome.FASTER if is_faster else Outcome.SLOWER
        if trial.is_certain and not entry.is_late:
            return Outcome.UNKNOWN
        keeper = state_keeper(trial.before)
        if keeper is not None:
            logging.info(
                "%s is not compared: %s (%s) keeps state in its kernel; predictions "
                "decide",
                trial.name or "A graph",
                keeper.name,
                keeper.op,
            )
            return Outcome.KERNEL_STATE
        if self.foresees:
            return Outcome.OPEN if trial.is_sure else Outcome.WITHHELD
        # Neither holds the trial, whose graphs are large.
        keep = functools.partial(self._keep, trial.name, fingerprint, decided)
        prices = trial.prices

        def learn(steps: Steps) -> None:
            for device_type, readings in readings_of(prices, steps).items():
                self.memories.get(device_type, self.memory).learn(readings)

        # Steps may yet correct a price of a node.
        lessons = (
            self.memories.get(each.device_type, self.memory).learned.lessons.get(cell)
            for each in prices.values()
            for cell in (each.float32.cell, each.low.cell)
        )
        learns = not all(lesson and lesson.is_over for lesson in lessons)
        return entry.begin(trial, keep, learn if learns else None)

    def _keep(
        self,
        name: str,
        fingerprint: str,
        decided: Callable[[bool], None],
        is_faster: bool,
        steps: Steps,
    ) -> None:
        """Remember what steps have found; a failure may be this process' alone."""
        compared = steps.compared
        kept = "16 bits are kept" if is_faster else "16 bits are not faster"
        what = name or "A graph"
        logging.info("%s compared: %s; %s", what, compared or "failed", kept)
        self.memory.decide(fingerprint, is_faster)
        decided(is_faster)
        if compared is None:
            return
        seconds = compared.seconds_before, compared.seconds_after
        verdict = KeptVerdict(name, is_faster, *seconds, time.time())
        self.memory.keep(fingerprint, verdict)


def own_steps_for(config: AmpConfig, device_type: str) -> StepVerdicts | None:
    """Return the memory by which steps decide; None where prices alone do.

    So it is with tuning off, where another device is planned for, under determinism,
    where plans may not change, and where memory is saved: two graphs would take both.
    """
    is_other = config.device_profile is not None
    is_off = config.tune == "off" or config.memory == SAVE
    if is_off or is_other or private.is_determinism_enabled():
        return None
    present = {device.device_type for device in devices.present_devices()}
    memories = {
        kind: memory_of(config.cache_dir, kind) for kind in {device_type, *present}
    }
    return StepVerdicts(memories[device_type], memories)


def readings_of(
    prices: Mapping[str, NodePrices], steps: Steps
) -> dict[str, dict[str, list[float]]]:
    """Return readings by type of device and cell: one of each profiled call.

    Nodes that one cell stands for count together: the middle of their logarithms. A
    node tells of both types or of none; where it was too short to tell, its cells are
    named without a reading.
    """
    taught: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for float32, low in zip(steps.float32, steps.mixed, strict=True):
        of_call: dict[tuple[str, str], list[float]] = defaultdict(list)
        for node in prices.keys() & float32.keys() & low.keys():
            device_type, *both = prices[node]
            seconds = (float32[node], low[node])
            logs = [log_ratio(s, e.seconds) for s, e in zip(seconds, both, strict=True)]
            for expected, log in zip(both, logs, strict=True):
                found = of_call[device_type, expected.cell]
                if log is not None and None not in logs:
                    found.append(log)
        for (device_type, cell), found in of_call.items():
            taught[device_type][cell] += [statistics.median(found)] if found else []
    return taught


def state_keeper(graph_def: GraphDef) -> NodeDef | None:
    """Return a node of a graph, or of its functions, that cannot have two kernels."""
    graph_def, site = with_bodies(graph_def), call_sites.current().site
    bodies = (function.node_def for function in graph_def.library.function)
    # Instances of a Session share its kernels, but for those in functions it calls.
    own = () if site is not None and site.is_run else graph_def.node
    nodes = itertools.chain(own, *bodies)
    return next(filter(keeps_state_in_kernel, nodes), None)


class KeptVerdict(NamedTuple):
    """The verdict on a graph, as it is kept.

    Attributes:
      graph: its name, human-readable.
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
    """Verdicts and lessons of one device; several threads may use it.

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

    def keep(self, fingerprint: str, verdict: KeptVerdict) -> None:
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
    """Return the fields of a file by device; none where it is no such file."""
    return _devices_in(KeptFile(path, _PART).read())


def _devices_in(fields: Fields) -> dict[str, Fields]:
    devices = mapping_in(fields, _PART).items()
    return {k: v for k, v in devices if is_line(k) and isinstance(v, dict)}


def verdicts_in(fields: Fields) -> Mapping[str, KeptVerdict]:
    """Return the verdicts of one device by fingerprint."""
    found = {}
    for fingerprint, values in mapping_in(fields, "verdicts").items():
        if isinstance(values, dict) and values.keys() == set(KeptVerdict._fields):
            graph, faster, *numbers = verdict = KeptVerdict(**values)
            if type(faster) is bool and is_line(graph) and all(map(is_number, numbers)):
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
    """Return the lessons of this device; None where prices alone decide."""
    if config.tune == "off" or config.device_profile is not None:
        return None
    return memory_of(config.cache_dir, device_type).learned


def memory_of(cache_dir: pathlib.Path | None, device_type: str) -> StepMemory:
    """Return the memory of this process for its devices of one type.

    It is read when the first graph arrives, and shared by all graphs from then on.
    """
    # Graphs arrive on several threads at once; the cache alone would give each its own.
    with _lock:
        return _memory_of(cache_dir, device_type)


@functools.cache
def _memory_of(cache_dir: pathlib.Path | None, device_type: str) -> StepMemory:
    import tensorflow as tf

    key = devices.key_of(devices.device_of_type(device_type))
    path = None if cache_dir is None else memory_path(cache_dir)
    return StepMemory(f"{key}, TensorFlow {tf.version.VERSION}", path)


# What a parent has found out since is in the file.
per_process(_memory_of.cache_clear)
