"""What a worker reports and how it travels: frozen records, JSON on one line."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from tf_amp.tools.bench.worker.executed_ops import OpCounts


@dataclass(frozen=True)
class Measurement:
    """One mode of one model in one process.

    ``first_seconds`` passed from the start of the process to the end of its first step,
    with importing TensorFlow, building the model, tracing and optimizing.
    ``values`` are what the step computed: the first losses of training, or a sample
    of the outputs of inference. They are compared with those of float32.
    """

    mode: str
    step_seconds: tuple[float, ...]
    values: tuple[float, ...]
    ops: OpCounts
    first_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Median time of a step."""
        return median(self.step_seconds)


@dataclass(frozen=True)
class Run:
    """One process: a model under a variant, or the message of its failure.

    ``warning`` is what tf-amp said about a graph that it could not rewrite.
    """

    model: str
    variant: str
    round: int
    measurements: tuple[Measurement, ...] = ()
    peak_bytes: int = 0
    failure: str = ""
    warning: str = ""


def run_to_json(run: Run) -> str:
    """Return the run on one line."""
    return json.dumps(dataclasses.asdict(run))


def run_from_json(text: str) -> Run:
    """Return the run that ``run_to_json`` wrote."""
    return run_from_dict(json.loads(text))


def run_from_dict(fields: Mapping[str, Any]) -> Run:
    """Return the run of which these are the fields."""
    measurements = tuple(_measurement(each) for each in fields["measurements"])
    return Run(**{**fields, "measurements": measurements})


def _measurement(fields: Mapping[str, Any]) -> Measurement:
    return Measurement(
        mode=fields["mode"],
        step_seconds=tuple(fields["step_seconds"]),
        values=tuple(fields["values"]),
        ops=OpCounts(**fields["ops"]),
        first_seconds=fields.get("first_seconds", 0.0),
    )
