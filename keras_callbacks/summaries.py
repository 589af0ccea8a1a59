"""The plans made during one `fit`; numbers, histograms and plans for TensorBoard.

What is written goes beside what Keras' own callback writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from grappler_pass.fork_safety import renewed_lock
from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.plan import Plan
from tf_amp.report.plans import markdown_of
from tf_amp.rewriting import host


@dataclasses.dataclass(frozen=True)
class WatchedPlan:
    """A plan, and when it was made, in seconds since the epoch.

    Its role is "train", "test" or "predict"; empty where that is not known.
    """

    role: str
    plan: Plan
    is_applied: bool
    time_s: float


# Those of large graphs take megabytes, and some programs trace without end.
_MOST = 256


class PlanWatch:
    """Collects plans between `start` and `stop`.

    Attributes:
      role: what is running now, set by who runs it.
      plans: so far, oldest first; of a graph that was planned twice the one applied, of
        very many graphs those that take most time.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self.role = ""
        self.plans: list[WatchedPlan] = []
        self._taken: list[WatchedPlan] = []

    def start(self) -> None:
        """Collect what is planned from now on."""
        host.current().watchers.append(self._take)

    def stop(self) -> None:
        """Collect no more."""
        with contextlib.suppress(ValueError):
            host.current().watchers.remove(self._take)

    def take_new(self) -> list[WatchedPlan]:
        """Return the plans that this has not returned before."""
        known = {id(watched) for watched in self._taken}
        new = [watched for watched in self.plans if id(watched) not in known]
        self._taken = list(self.plans)
        return new

    def _take(self, rewrite: Rewrite) -> None:
        plan = rewrite.plan
        if plan is None:
            return
        watched = WatchedPlan(self.role, plan, rewrite.changed, time.time())
        # Grappler comes twice with each graph, the second time after its own changes.
        known = [
            w for w in self.plans if (w.role, w.plan.graph) == (self.role, plan.graph)
        ]
        if any(w.is_applied for w in known) and not watched.is_applied:
            return
        if known and not known[-1].is_applied:
            self.plans.remove(known[-1])
        self.plans.append(watched)
        if len(self.plans) > _MOST:
            seconds = [w.plan.seconds_before for w in self.plans]
            del self.plans[seconds.index(min(seconds))]


Scalars = Mapping[str, float | int]

# A run of its own: of two files with events in one folder, TensorBoard follows one.
FOLDER = "precision"
# Steps whose values are read and written together.
STEPS_AT_ONCE = 100
# Of a table, those that matter most.
ROWS = 20

_lock = renewed_lock()
# One file for all monitors of a `fit`, by Keras' callback.
_writers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# Those that may still write to it.
_open: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Summaries]]
_open = weakref.WeakKeyDictionary()


class Summaries:
    """Writes into the folder of a TensorBoard callback, where there is one.

    Attributes:
      are_wanted: whether there is one, and this process writes.
    """

    def __init__(self, tensorboard: Any = None, model: Any = None) -> None:
        """Open nothing yet.

        Without a callback of Keras' nothing is written; the model's strategy decides
        whether this process writes.
        """
        self._tensorboard = tensorboard
        folder = getattr(tensorboard, "log_dir", None)
        self.are_wanted = bool(folder) and writes(model)
        self._folder = os.path.join(os.fspath(folder or ""), FOLDER)
        self._steps: list[tuple[int, Callable[[], Scalars]]] = []
        if self.are_wanted:
            with _lock:
                _open.setdefault(tensorboard, weakref.WeakSet()).add(self)

    def write(self, scalars: Scalars, epoch: int) -> None:
        """Write scalars of an epoch under their names."""
        self._write([(epoch, _scalars("", scalars))])

    def add_step(self, step: int, read: Callable[[], Scalars]) -> None:
        """Have scalars written under their names behind `step/`, some steps at once.

        They are read then. The step is by its number in this `fit`, from 1 on.
        """
        self._steps.append((step, read))
        if len(self._steps) >= STEPS_AT_ONCE:
            self.write_steps()

    def write_steps(self) -> None:
        """Write the steps that were added and are not written yet."""
        rows, self._steps = self._steps, []
        self._write((step, _scalars("step/", read())) for step, read in rows)

    def write_exponents(
        self, exponents: Mapping[str, np.ndarray[Any, Any]], epoch: int
    ) -> None:
        """Write histograms of exponents of two.

        They are by name; counts of the float32 exponents -127 to 128, [256].
        """
        histograms = []
        for name, counts in exponents.items():
            # Left edge, right edge and count, without the empty ends.
            (filled,) = np.nonzero(counts)
            rows = np.zeros((0, 3))
            if filled.size:
                places = np.arange(filled[0], filled[-1] + 1)
                left = places - 127.0
                rows = np.stack([left, left + 1.0, counts[places]], axis=1)
            histograms.append(_value(name, "histograms", rows))
        self._write([(epoch, histograms)])

    def write_plans(self, plans: Iterable[WatchedPlan], epoch: int) -> None:
        """Write plans as tables, the best rows first, if they have times or change."""
        for watched in plans:
            plan = watched.plan
            if plan.seconds_before or not plan.is_empty:
                name = f"plan/{watched.role or 'graph'}/{plan.graph}"
                self.write_text(name, markdown_of(plan, ROWS), epoch)

    def write_text(self, name: str, markdown: str, epoch: int) -> None:
        """Write a text in Markdown of an epoch."""
        self._write([(epoch, [_value(name, "text", markdown)])])

    def close(self) -> None:
        """Write no more; the last one to say so closes the file."""
        if not self.are_wanted:
            return
        with _lock:
            others = _open.get(self._tensorboard, weakref.WeakSet())
            others.discard(self)
            writer = None if others else _writers.pop(self._tensorboard, None)
        if writer is not None:
            writer.close()

    def _write(self, events: Iterable[tuple[int, list[Any]]]) -> None:
        if not self.are_wanted:
            return
        now = time.time()
        with _lock:
            if self._tensorboard not in _writers:
                # TensorFlow's own writer of events takes 20 times as long to use.
                tf.io.gfile.makedirs(self._folder)
                parts = (f"{now:.0f}", platform.node(), str(os.getpid()), FOLDER)
                name = ".".join(("events.out.tfevents", *parts))
                writer = tf.io.TFRecordWriter(os.path.join(self._folder, name))
                begin = tf.compat.v1.Event(wall_time=now, file_version="brain.Event:2")
                writer.write(begin.SerializeToString())
                _writers[self._tensorboard] = writer
            writer = _writers[self._tensorboard]
        for step, values in events:
            summary = tf.compat.v1.Summary(value=values)
            event = tf.compat.v1.Event(wall_time=now, step=step, summary=summary)
            writer.write(event.SerializeToString())
        writer.flush()


def _scalars(prefix: str, scalars: Scalars) -> list[Any]:
    value = tf.compat.v1.Summary.Value
    return [value(tag=f"{prefix}{n}", simple_value=x) for n, x in scalars.items()]


def _value(tag: str, plugin: str, content: Any) -> Any:
    """Return a value as `tf.summary` does, which needs TensorBoard's own package."""
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
    )
    tensor = tf.make_tensor_proto(content)
    return tf.compat.v1.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)


def writes(model: Any) -> bool:
    """Return whether this process writes what all workers of a model have in common."""
    strategy = getattr(model, "distribute_strategy", None)
    extended = getattr(strategy, "extended", None)
    return bool(getattr(extended, "should_save_summary", True))
