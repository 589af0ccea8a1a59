"""What is known of a job, and where it is read from."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grappler_pass.planning.plan import Plan
from tf_amp.errors import ScriptMissingError, UnreadableRecordError
from tf_amp.tools.explain.prediction import Prediction
from tf_amp.tools.verify.verification import Verification


@dataclasses.dataclass(frozen=True)
class ComparedSteps:
    """How steps that ran both ways have decided on the plan of a graph.

    Attributes:
      graph: its name.
      is_faster: whether the plan stays.
      ratio: median of float32's seconds over those of 16 bits.
      pairs: how many pairs of steps there were.
    """

    graph: str
    is_faster: bool
    ratio: float
    pairs: int


@dataclasses.dataclass(frozen=True)
class Record:
    """What is known of a job.

    Attributes:
      name: of the job, for people.
      plans: of its graphs.
      compared: of graphs whose steps were compared.
      predictions: of graphs that were run both ways.
      verifications: of graphs whose numbers were held against float32.
      runs: of `fit`, as PrecisionReport writes them.
    """

    name: str
    plans: tuple[Plan, ...] = ()
    compared: tuple[ComparedSteps, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    verifications: tuple[Verification, ...] = ()
    runs: tuple[Mapping[str, Any], ...] = ()


def record_from_path(path: pathlib.Path) -> Record:
    """Read a file of JSON that tf-amp wrote, or all of them in a folder.

    Raises:
      ScriptMissingError: there is no such file or folder.
      UnreadableRecordError: a file holds nothing that tf-amp writes, or the folder has
        no such file.
    """
    if not path.exists():
        raise ScriptMissingError(f"{path}: no such file or folder.")
    if not path.is_dir():
        return _joined(path.name, [_record_from_file(path)])
    files = sorted(path.glob("*.json"))
    records = [record for file in files if (record := _known(file)) is not None]
    if not records:
        raise UnreadableRecordError(
            f"{path} holds no plan: none of its {len(files)} JSON files is one that "
            "tf-amp writes. TF_AMP_LOG=FOLDER has a job write its plans there."
        )
    return _joined(path.resolve().name, records)


def _known(path: pathlib.Path) -> Record | None:
    """Read a file of a folder; None for what is somebody else's."""
    if ".plan." in path.name or ".steps." in path.name:
        return _record_from_file(path)
    try:
        return _record_from_file(path)
    except UnreadableRecordError:
        return None


def _record_from_file(path: pathlib.Path) -> Record:
    try:
        return record_from_json(path.name, path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableRecordError(
            f"{path} is no plan, prediction, verification or precision report as "
            f"tf-amp writes them: {type(error).__name__}: {error}"
        ) from error


def record_from_json(name: str, text: str) -> Record:
    """Read what one file holds.

    Raises:
      ValueError: it is none of the kinds that tf-amp writes.
    """
    values = json.loads(text)
    found = [_record_of(name, each) for each in _listed(values)]
    return _joined(name, found)


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) and values else [values]


def _record_of(name: str, values: Any) -> Record:
    if not isinstance(values, dict):
        raise ValueError(f"received a {type(values).__name__} for an object")
    for marks, read in _KINDS.items():
        if set(marks) <= set(values):
            return read(name, values)
    raise ValueError(f"it has the fields {', '.join(map(str, list(values)[:6]))}")


def _joined(name: str, records: Iterable[Record]) -> Record:
    """Return one record of all, the graph that takes longest first."""
    found = list(records)
    plans = [plan for record in found for plan in record.plans]
    return Record(
        name,
        tuple(sorted(dict.fromkeys(plans), key=lambda plan: -plan.seconds_before)),
        tuple(each for record in found for each in record.compared),
        tuple(each for record in found for each in record.predictions),
        tuple(each for record in found for each in record.verifications),
        tuple(each for record in found for each in record.runs),
    )


def _from_plan(name: str, values: dict[str, Any]) -> Record:
    return Record(name, plans=(Plan.from_json(json.dumps(values)),))


def _from_prediction(name: str, values: dict[str, Any]) -> Record:
    prediction = Prediction.from_json(json.dumps(values))
    return Record(name, plans=(prediction.plan,), predictions=(prediction,))


def _from_verification(name: str, values: dict[str, Any]) -> Record:
    return Record(name, verifications=(Verification.from_json(json.dumps(values)),))


def _from_steps(name: str, values: dict[str, Any]) -> Record:
    return Record(name, compared=(ComparedSteps(**values),))


def _from_run(name: str, values: dict[str, Any]) -> Record:
    plans = (Plan.from_json(json.dumps(each["plan"])) for each in values["plans"])
    return Record(name, plans=tuple(plans), runs=(values,))


# By fields that no other kind has.
_KINDS: dict[tuple[str, ...], Callable[[str, dict[str, Any]], Record]] = {
    ("decisions", "low_dtype"): _from_plan,
    ("plan", "float32", "mixed"): _from_prediction,
    ("checks", "tolerance"): _from_verification,
    ("graph", "is_faster", "ratio"): _from_steps,
    ("plans", "outcome", "scale"): _from_run,
}
