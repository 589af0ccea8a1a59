"""The plan, the costs and the events of a run, in files beside its checkpoints.

They are human-readable text, and JSON for programs.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from grappler_pass.planning.plan import Plan
from keras_callbacks.callback import Logs, never_raising
from keras_callbacks.gradient_health_monitor import GradientHealth
from keras_callbacks.loss_scale_monitor import (
    ScaleHistory,
    ScaleMonitor,
    ScalePoint,
    ScaleReading,
)
from keras_callbacks.summaries import PlanWatch, Summaries, WatchedPlan, writes
from tf_amp.errors import ConfigError
from tf_amp.report import page
from tf_amp.report.codec import plain, to_json
from tf_amp.report.files import write_whole
from tf_amp.runtime import model_scopes
from tf_amp.tools.job_page import html_from_record, record_from_json
from tf_amp.training.report import loss_scale_state

# Of the exponents of float32.
_BIAS = 127


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened, `time_s` seconds after 1970."""

    time_s: float
    text: str


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """One run of `fit`, as far as it has come.

    Attributes:
      model: its name.
      outcome: "running", "ended" or "interrupted".
      began_s: seconds after 1970.
      epochs: that have ended, those of an earlier run that is resumed among them.
      scale: how the loss scale is.
      plans: made during the run.
      events: oldest first.
      step_times: as StepTimeMonitor logs them; empty without one.
      comparison: in words; empty where no steps were compared.
      health: gradients by layer; empty without a GradientHealthMonitor.
      exponents: of gradients, as GradientHealthMonitor counts them.
      scales: the loss scale by step.
    """

    model: str
    outcome: str
    began_s: float
    epochs: int
    scale: ScaleReading
    plans: tuple[WatchedPlan, ...]
    events: tuple[Event, ...]
    step_times: Mapping[str, float]
    comparison: str
    health: Mapping[str, GradientHealth]
    exponents: Mapping[str, np.ndarray[Any, Any]]
    scales: tuple[ScalePoint, ...]


def json_from_record(record: RunRecord) -> str:
    """Return a record as JSON; numbers that are not finite as text."""
    fields: dict[str, Any] = plain(record)
    fields["exponents"] = {
        layer: {str(e - _BIAS): int(n) for e, n in enumerate(counts) if n}
        for layer, counts in record.exponents.items()
    }
    fields["plans"] = [
        {
            "role": watched.role,
            "is_applied": watched.is_applied,
            "summary": watched.plan.summary(),
            "prices": _sources(watched.plan),
            "plan": watched.plan,
        }
        for watched in record.plans
    ]
    return to_json(fields) + "\n"


def text_from_record(record: RunRecord) -> str:
    """Return a human-readable record: figures, events, then the plans."""
    scale = record.scale
    is_known = math.isfinite(scale.skipped_here)
    skipped = scale.skipped_here if is_known else "an unknown number of"
    lines = [
        f"{record.model}: fit {record.outcome}, {record.epochs} epochs, "
        f"began {_clock(record.began_s)}",
        f"loss scale {scale.loss_scale:g}, {skipped} steps skipped",
    ]
    lines += [f"{name} {value:.4g}" for name, value in record.step_times.items()]
    lines += [f"measured {record.comparison}"] if record.comparison else []
    lines += [
        f"gradients of {layer}: largest {health.largest:.3g}, "
        f"{health.underflow_share:.2%} underflow, {health.overflow_share:.2%} overflow"
        for layer, health in sorted(record.health.items())
    ]
    lines += ["", "Events"]
    lines += [f"  {_clock(event.time_s)}  {event.text}" for event in record.events]
    for watched in record.plans:
        applied = "applied" if watched.is_applied else "not applied"
        estimates = ", ".join(f"{k} {n}" for k, n in _sources(watched.plan).items())
        title = f"Plan for {watched.role or watched.plan.graph}, {applied}"
        lines += ["", f"{title}; cost estimates: {estimates}", str(watched.plan)]
    return "\n".join(lines) + "\n"


def _sources(plan: Plan) -> dict[str, int]:
    """Count where the prices of a plan come from."""
    return dict(Counter(row.source for row in plan.decisions if row.source))


def _clock(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_s))


NAME = "precision_report"
# Tables of large plans are not written after each short epoch.
_PAUSE_S = 30.0


class PrecisionReport(ScaleMonitor):
    """Writes `precision_report.txt`, `.json`, and `.html` if asked to.

    They are brought up to date during `fit`, and when it ends or raises; a reader sees
    the old files or the new ones, whole.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, html: bool = False
    ) -> None:
        """Say where to.

        Args:
          folder: made if it is not there; None: where the ModelCheckpoint of the same
            `fit` writes, or beside the folder of its BackupAndRestore.
          html: write a page with charts, too, when `fit` ends.

        Raises:
          ConfigError: this is no path.
          MissingExtraError: a page is wanted, and Jinja2 or plotly is not installed.
        """
        if folder is not None and not isinstance(folder, (str, os.PathLike)):
            raise ConfigError(
                f"PrecisionReport: folder={folder!r}; allowed are paths and None."
            )
        if html:
            page.check_extra()
        self._given, self._writes_page = folder, html
        self._watch = PlanWatch()

    def begin(self) -> None:
        """Find the folder, and write a first report, so that what fails is known."""
        super().begin()
        self._watch, self._history = PlanWatch(), ScaleHistory()
        self._events: list[Event] = []
        self._began_s, self._outcome, self._epochs = time.time(), "running", 0
        self._scale: ScaleReading | None = None
        folder = self._given
        if folder is None:
            saved = getattr(self.sibling("ModelCheckpoint"), "filepath", None)
            backup = getattr(self.sibling("BackupAndRestore"), "backup_dir", None)
            if saved is None and backup is None:
                raise ConfigError(
                    "no folder is given, and no ModelCheckpoint or BackupAndRestore "
                    "beside it"
                )
            beside: Any = backup if saved is None else saved
            folder = pathlib.Path(os.fspath(beside)).parent
        self._folder = pathlib.Path(folder)
        # With that one's plans go what they are for.
        if self.sibling("AutoMixedPrecision") is not None:
            self._summaries = Summaries()
        self._watch.start()
        model_scopes.undo_after_call(self.model, self._leave)
        self._note("fit began")
        self._write()

    @never_raising
    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Count the steps, of which some may have been skipped."""
        if self._readings is None:
            return
        self._readings.end_batch(batch, self.params)
        step = self._readings.steps
        unread = self._readings.unread() if self._history.wants(step) else None
        if unread is None:
            # Workers too are asked at the end of an epoch, and not after each step.
            return
        now, points = unread(), self._history.points
        before = points[-1].skipped_steps if points else 0
        origin = _origin(now) if now.skipped_here > before else ""
        self._history.add(ScalePoint(step, now.loss_scale, now.skipped_here, origin))

    @never_raising
    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Note what happened in the epoch."""
        self._epochs = epoch + 1
        self._note_scale()
        self._summaries.write_plans(self._watch.take_new(), epoch)
        if time.time() - self._written_s > _PAUSE_S:
            self._write()

    def end(self) -> None:
        """Write the whole report."""
        self._end("ended")

    @never_raising
    def _leave(self) -> None:
        """Write the report of a `fit` that raised."""
        if self._outcome == "running":
            self._note_scale()
            self._end("interrupted")

    def switch_off(self, reason: str) -> None:
        """Collect nothing more either."""
        self._watch.stop()
        super().switch_off(reason)

    def _end(self, outcome: str) -> None:
        self._outcome = outcome
        self._note(f"fit {outcome} after {self._epochs} epochs")
        self._watch.stop()
        self._write()
        if self._writes_page and writes(self.model):
            text = json_from_record(self._record())
            html = html_from_record(record_from_json(self.model.name, text))
            write_whole(self._folder / f"{NAME}.html", html.encode())

    def _note(self, text: str) -> None:
        self._events.append(Event(time.time(), text))

    def _note_scale(self) -> None:
        if self._readings is None:
            return
        now = self._readings.read()
        before, self._scale = self._scale or self._readings.at_begin(), now
        where = f"by the end of epoch {self._epochs}"
        skipped = now.skipped_here - before.skipped_here
        # Where it is not known, this is NaN.
        if skipped > 0:
            origin = _origin(now)
            cause = f"; the latest overflow began at {origin}" if origin else ""
            self._note(f"{skipped} steps skipped {where}{cause}")
        if now.loss_scale != before.loss_scale:
            scales = f"{before.loss_scale:g} -> {now.loss_scale:g}"
            self._note(f"loss scale {scales} {where}")

    def _write(self) -> None:
        if not writes(self.model):
            return
        record = self._record()
        self._folder.mkdir(parents=True, exist_ok=True)
        json_text = json_from_record(record)
        write_whole(self._folder / f"{NAME}.json", json_text.encode())
        text = text_from_record(record)
        write_whole(self._folder / f"{NAME}.txt", text.encode())
        self._written_s = time.time()

    def _record(self) -> RunRecord:
        times = getattr(self.sibling("StepTimeMonitor"), "latest", None)
        comparison = getattr(self.sibling("StepTimeMonitor"), "comparison", None)
        gradients = self.sibling("GradientHealthMonitor")
        planned = [
            Event(watched.time_s, f"planned {watched.plan.summary()}")
            for watched in self._watch.plans
        ]
        return RunRecord(
            model=str(getattr(self.model, "name", "")),
            outcome=self._outcome,
            began_s=self._began_s,
            epochs=self._epochs,
            scale=self._scale or ScaleReading(),
            plans=tuple(self._watch.plans),
            events=tuple(sorted([*self._events, *planned], key=lambda e: e.time_s)),
            step_times=times.as_logs() if times else {},
            comparison=str(comparison) if comparison else "",
            health=dict(getattr(gradients, "health", {})),
            exponents=dict(getattr(gradients, "exponents", {})),
            scales=tuple(self._history.points),
        )


def _origin(scale: ScaleReading) -> str:
    """Say where the latest overflow began, if steps were skipped by this package."""
    origin = None if scale.is_own else loss_scale_state().overflow_origin
    return str(origin or "")
