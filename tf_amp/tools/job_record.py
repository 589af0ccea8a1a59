"""A record of a job: its plans and steps, and the files that they are read from."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grappler_pass.planning.draft import Outcome
from grappler_pass.planning.plan import Plan
from tf_amp.compare.kept_file import is_number
from tf_amp.errors import ScriptMissingError, UnreadableRecordError
from tf_amp.report import codec
from tf_amp.rewriting.dumps import Collector, ComparedSteps
from tf_amp.tools.prediction import Prediction
from tf_amp.tools.verify.verification import Verification
from tf_amp.training.report import LossScaleState

_IN_DOUBT = (Outcome.OPEN.value, Outcome.WITHHELD.value)
# What is written, by fields that no other kind has.
_MARKS = {
    "a plan": {"decisions", "low_dtype"},
    "a prediction": {"plan", "float32", "mixed"},
    "a verification": {"checks", "tolerance"},
    "a comparison of steps": {"graph", "is_faster", "ratio"},
    "a precision report": {"plans", "outcome", "scale"},
}


@dataclasses.dataclass(frozen=True)
class JobRecord:
    """Plans, steps and numbers of a job.

    Attributes:
      name: of the job, human-readable.
      plans: of its graphs.
      compared: of graphs whose steps were compared.
      predictions: of graphs that were run both ways.
      verifications: of graphs whose numbers were held against float32.
      runs: of `fit`, as PrecisionReport writes them.
      loss_scale: as it was when the job ended; None where that is not known, or where
        no step was scaled.
      left_out: of files that cannot be read, which and why, a sentence each.
    """

    name: str = ""
    plans: tuple[Plan, ...] = ()
    compared: tuple[ComparedSteps, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    verifications: tuple[Verification, ...] = ()
    runs: tuple[Mapping[str, Any], ...] = ()
    loss_scale: LossScaleState | None = None
    left_out: tuple[str, ...] = ()


def record_from_path(path: pathlib.Path) -> JobRecord:
    """Read a file of JSON that tf-amp wrote, or all of them in a folder.

    Of a folder, files that cannot be read are left out, and named in the record.

    Raises:
      ScriptMissingError: there is no such file or folder.
      UnreadableRecordError: the file holds nothing that tf-amp writes, or the folder
        has no file that does.
    """
    if not path.exists():
        raise ScriptMissingError(f"{path}: no such file or folder.")
    if not path.is_dir():
        return _joined(path.name, [_record_from_file(path)])
    records, left_out = _records_from_files(sorted(path.glob("*.json")))
    if not records:
        first = " ".join(left_out[:1]) or "It has no JSON file."
        raise UnreadableRecordError(
            f"{path} holds nothing that tf-amp writes. {first} TF_AMP_LOG=FOLDER has a "
            "job write its plans there."
        )
    joined = _joined(path.resolve().name, records)
    return dataclasses.replace(joined, left_out=tuple(left_out))


def _records_from_files(
    files: Iterable[pathlib.Path],
) -> tuple[list[JobRecord], list[str]]:
    """Return the records of files, and of those that cannot be read what is wrong."""
    records: list[JobRecord] = []
    left_out: list[str] = []
    for file in files:
        try:
            records.append(_record_from_file(file))
        except UnreadableRecordError as error:
            left_out.append(str(error))
    return records, left_out


def _record_from_file(path: pathlib.Path) -> JobRecord:
    try:
        return record_from_json(path.name, path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        wrong = str(error)
        if isinstance(error, OSError):
            wrong = error.strerror or wrong
        elif isinstance(error, UnicodeDecodeError):
            wrong = "it is no text"
        elif isinstance(error, json.JSONDecodeError):
            wrong = f"it is cut off, or no JSON ({error})"
        raise UnreadableRecordError(
            f"{path} is no plan, prediction, verification or precision report as "
            f"tf-amp writes them: {wrong}."
        ) from error


def record_from_json(name: str, text: str) -> JobRecord:
    """Read what one file holds; ValueError if it is none of the kinds tf-amp writes."""
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    listed = values if isinstance(values, list) and values else [values]
    return _joined(name, list(map(_record_of, listed)))


def _record_of(values: Any) -> JobRecord:
    """Return what was written as one of the kinds that tf-amp writes."""
    if not isinstance(values, dict):
        raise ValueError("it holds no object with fields")
    marked = (kind for kind, marks in _MARKS.items() if marks <= values.keys())
    kind = next(marked, None)
    if kind is None:
        raise ValueError(f"it has the fields {', '.join(map(str, list(values)[:6]))}")
    try:
        match kind:
            case "a plan":
                return JobRecord(plans=(codec.from_plain(Plan, values),))
            case "a prediction":
                prediction = codec.from_plain(Prediction, values)
                return JobRecord(plans=(prediction.plan,), predictions=(prediction,))
            case "a verification":
                verification = codec.from_plain(Verification, values)
                return JobRecord(verifications=(verification,))
            case "a comparison of steps":
                compared = codec.from_plain(ComparedSteps, values)
                if not is_number(compared.ratio) or type(compared.pairs) is not int:
                    raise ValueError("no numbers")
                return JobRecord(compared=(compared,))
            case _:
                rows = (each["plan"] for each in values["plans"])
                plans = [codec.from_plain(Plan, each) for each in rows]
                return JobRecord(plans=tuple(plans), runs=(values,))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"it has the fields of {kind}, but not what tf-amp writes into them"
        ) from error


def _joined(name: str, records: Sequence[JobRecord]) -> JobRecord:
    """Return one record of all, the graph that takes longest first."""
    columns: dict[str, Any] = {
        field: tuple(each for record in records for each in getattr(record, field))
        for field in ("plans", "compared", "predictions", "verifications", "runs")
    }
    plans = []
    for plan in dict.fromkeys(columns["plans"]):
        # What was in doubt steps may have decided since.
        compared = [each for each in columns["compared"] if each.graph == plan.graph]
        if compared and plan.outcome in _IN_DOUBT:
            plan = dataclasses.replace(plan, outcome=str(compared[-1]))
        plans.append(plan)
    columns["plans"] = tuple(sorted(plans, key=lambda plan: -plan.seconds_before))
    return JobRecord(name, **columns)


def record_from_collector(
    name: str,
    collector: Collector,
    others: Iterable[pathlib.Path],
    loss_scale: LossScaleState | None,
) -> JobRecord:
    """Return the record of a job that has run in this process, and in others.

    What these have logged is in files.
    """
    here = JobRecord(plans=tuple(collector.plans), compared=tuple(collector.compared))
    records, left_out = _records_from_files(others)
    joined = _joined(name, [here, *records])
    return dataclasses.replace(joined, loss_scale=loss_scale, left_out=tuple(left_out))
