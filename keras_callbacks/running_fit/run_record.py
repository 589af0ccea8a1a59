"""What is kept of a run, as text for people and JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from grappler_pass.planning.plan import Plan
from keras_callbacks.running_fit.gradient_statistics import GradientHealth
from keras_callbacks.running_fit.plan_watch import WatchedPlan
from keras_callbacks.running_fit.scale_readings import ScalePoint, ScaleReading

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
    fields: dict[str, Any] = {
        field.name: getattr(record, field.name) for field in dataclasses.fields(record)
    }
    fields["scale"] = {
        k: _finite(v) for k, v in dataclasses.asdict(record.scale).items()
    }
    fields["events"] = [dataclasses.asdict(event) for event in record.events]
    fields["health"] = {
        layer: {k: _finite(v) for k, v in dataclasses.asdict(health).items()}
        for layer, health in record.health.items()
    }
    fields["exponents"] = {
        layer: {str(e - _BIAS): int(n) for e, n in enumerate(counts) if n}
        for layer, counts in record.exponents.items()
    }
    fields["scales"] = [
        (p.step, _finite(p.loss_scale), _finite(p.skipped_steps), p.overflow_origin)
        for p in record.scales
    ]
    fields["plans"] = [
        {
            "role": watched.role,
            "is_applied": watched.is_applied,
            "summary": watched.plan.summary(),
            "prices": _sources(watched.plan),
            "plan": json.loads(watched.plan.to_json()),
        }
        for watched in record.plans
    ]
    return json.dumps(fields, indent=1) + "\n"


def text_from_record(record: RunRecord) -> str:
    """Return a record for people: figures, events, then the plans."""
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


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
