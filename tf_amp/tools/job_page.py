"""A job: its plans and steps, read from files or collected, and the page of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tf_amp
from grappler_pass.planning.draft import Outcome
from grappler_pass.planning.plan import Plan
from tf_amp.compare.kept_file import is_number
from tf_amp.errors import ScriptMissingError, UnreadableRecordError
from tf_amp.report import codec, page, plans
from tf_amp.report.counts import counted
from tf_amp.report.page import Card, PageTable, Section
from tf_amp.report.plans import short_milliseconds
from tf_amp.rewriting.dumps import Collector, ComparedSteps
from tf_amp.tools.prediction import Prediction
from tf_amp.tools.verify.verification import TensorCheck, Verification
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


_MILLI = 1e3
# Operations whose charts a page has room for, and rows of a table of graphs.
_MOST_NODES, _MOST_PLANS = 12_000, 100
_BAD_COLOR = "#c1443c"
# Tensors of a chart; the least that a logarithmic axis shows as an error.
_TENSORS, _LEAST_ERROR = 40, 1e-9
# Exponents of float16: of its smallest number, its smallest normal one, its largest.
_FLOAT16_EXPONENTS = (-24, -14, 15)
_NO_GRADIENTS = "Gradients by layer: GradientHealthMonitor() beside PrecisionReport."
_LEAST_TEXT = f"below {_LEAST_ERROR:g}: equal"
_RATIO = re.compile(r"\d+(\.\d+)?x")


def html_from_record(record: JobRecord, other: JobRecord | None = None) -> str:
    """Return a page that opens without a network, perhaps beside another job.

    It takes Jinja2 and plotly; MissingExtraError without.
    """
    sizes = itertools.accumulate(
        len({row.slot.node for row in plan.decisions}) for plan in record.plans
    )
    # Those that there is room for, of those that take longest first; one at least.
    count = sum(size <= _MOST_NODES for size in sizes)
    drawn = record.plans[: max(count, 1)]
    low = sum(not plan.is_empty for plan in record.plans)
    verb = "is" if low == 1 else "are"
    text = f"{low} of {counted(len(record.plans), 'graph')} {verb} rewritten."
    sections = [Section("Job", text, cards=tuple(_cards(record)))]
    if other is not None:
        sections.append(_compared(record, other))
    for plan in drawn:
        sections += plans.sections_of(plan, f"{plan.graph}: " if len(drawn) > 1 else "")
    sections += sections_of_runs(record)
    if len(drawn) > 1 or len(record.plans) > len(drawn):
        sections.insert(1, _all_graphs(record, len(drawn)))
    if record.left_out:
        sections.append(Section("Left out", missing=" ".join(record.left_out)))
    note = f"tf-amp {tf_amp.__version__}"
    return page.page_from_sections(f"Precision of {record.name}", sections, note)


def _cards(record: JobRecord) -> Iterator[Card]:
    for compared in record.compared:
        pairs = counted(compared.pairs, "pair")
        stays = "stays" if compared.is_faster else "float32 was faster"
        yield Card(
            "measured speed-up",
            f"{compared.ratio:.2f}x",
            f"{compared.graph}: {pairs} of steps; {stays}",
        )
    if (state := record.loss_scale) is not None:
        text = f"loss scale {state.scale:g} when the job ended"
        if origin := state.overflow_origin:
            text += f"; the latest overflow began in {origin}"
        yield Card("steps skipped", f"{state.skipped_steps}", text)
    for run in record.runs:
        scale = run["scale"]
        yield Card(
            "steps skipped",
            f"{scale['skipped_here']}",
            f"{run['model']}: loss scale {scale['loss_scale']}, {run['outcome']} after "
            f"{counted(run['epochs'], 'epoch')}",
        )
        if run["comparison"]:
            ratio = _RATIO.search(run["comparison"])
            value = ratio[0] if ratio else "compared"
            yield Card("measured speed-up", value, run["comparison"])
        if times := run.get("step_times"):
            note = f"{run['model']}: median of the last epoch"
            if "step_ms_p95" in times:
                note += f"; 95 of 100 take less than {times['step_ms_p95']:.3g} ms"
            if "examples_per_second" in times:
                note += f"; {times['examples_per_second']:.3g} examples per second"
            yield Card("measured step", f"{times['step_ms_median']:.3g} ms", note)


def _all_graphs(record: JobRecord, drawn: int) -> Section:
    rows = tuple(
        (
            plan.graph,
            plan.low_dtype if not plan.is_empty else "float32",
            short_milliseconds(plan.seconds_before),
            short_milliseconds(plan.seconds_after),
            plan.speedup_text,
            plan.summary(),
        )
        for plan in record.plans[:_MOST_PLANS]
    )
    return Section(
        "Graphs",
        f"{len(record.plans)} graphs, the slowest first; the first {drawn} of them are "
        "drawn below.",
        table=PageTable(
            ("graph", "type", "float32 ms", "planned ms", "speed-up", "plan"), rows
        ),
    )


def _compared(record: JobRecord, other: JobRecord) -> Section:
    """Show for graphs of the same name what has changed from the other job."""
    before = {plan.graph: plan for plan in reversed(other.plans)}
    rows = []
    for plan in record.plans[:_MOST_PLANS]:
        old = before.get(plan.graph)
        if old is None:
            rows.append((plan.graph, "-", _speed(plan), "not in the other job"))
            continue
        types = {row.slot: row.dtype for row in old.decisions}
        changed = [
            f"{row.slot} {types[row.slot]} to {row.dtype}"
            for row in plan.decisions
            if types.get(row.slot, row.dtype) != row.dtype
        ]
        differences = ", ".join(changed[:5]) or "none"
        if len(changed) > 5:
            differences += f" and {len(changed) - 5} more"
        if not any(row.slot in types for row in plan.decisions):
            differences = "no operation in common"
        rows.append((plan.graph, _speed(old), _speed(plan), differences))
    return Section(
        f"Beside {other.name}",
        "Predicted milliseconds per step, and operations whose type differs.",
        table=PageTable(("graph", other.name, record.name, "differences"), tuple(rows)),
    )


def _speed(plan: Plan) -> str:
    return (
        f"{plan.seconds_before * _MILLI:.3g} to {plan.seconds_after * _MILLI:.3g} ms "
        f"({plan.speedup_text})"
    )


def sections_of_runs(record: JobRecord) -> Iterator[Section]:
    """Yield what was recorded of steps; for the rest, how to have it recorded."""
    yield from map(_loss_scale, record.runs)
    yield from map(_gradients, record.runs)
    yield from map(_numbers, record.verifications)
    for prediction in record.predictions:
        title = f"Predicted and measured times of {prediction.plan.graph or 'a graph'}"
        yield Section(title, prediction.summary(), figure=_times_figure(prediction))
    no_runs = (
        "Loss scale by step: keras_callbacks.PrecisionReport(FOLDER) in `fit`. "
        f"{_NO_GRADIENTS}"
    )
    hints = {
        no_runs: record.runs,
        "Measured speed: a job whose steps are compared, with TF_AMP_LOG.": (
            record.compared
        ),
        "Numbers beside float32's: `tf-amp verify --json > FILE`.": (
            record.verifications
        ),
        "Predicted beside measured: `tf-amp explain --measure --json`.": (
            record.predictions
        ),
    }
    if missing := " ".join(hint for hint, recorded in hints.items() if not recorded):
        yield Section("Not recorded", missing=missing)


def _loss_scale(run: Mapping[str, Any]) -> Section:
    scales = run.get("scales", ())
    title = f"Loss scale of {run['model']}"
    if not scales:
        return Section(title, missing="No step was recorded.")
    steps, scale_texts, skipped_texts, origins = zip(*scales, strict=True)
    # What is not finite is written as text.
    values, skipped = list(map(float, scale_texts)), list(map(float, skipped_texts))
    figure = page.empty_figure(
        yaxis_type="log", xaxis_title="step", yaxis_title="loss scale", yaxis_dtick=1
    )
    figure.add_scatter(
        x=steps, y=values, mode="lines", line_shape="hv", name="loss scale",
        line_color=plans.LOW_COLOR,
    )  # fmt: skip
    before = [0.0, *skipped]
    lost = [n for n, count in enumerate(skipped) if count > before[n]]
    figure.add_scatter(
        x=[steps[n] for n in lost],
        y=[values[n] for n in lost],
        text=[origins[n] or "origin not known" for n in lost],
        mode="markers", name="steps skipped", marker_color=_BAD_COLOR,
        hovertemplate="step %{x}: %{text}<extra></extra>",
    )  # fmt: skip
    return Section(
        title,
        f"{skipped[-1]:g} steps skipped; a point names the operation that "
        "overflowed first.",
        figure=figure,
    )


def _gradients(run: Mapping[str, Any]) -> Section:
    counts = run.get("exponents", {})
    title = f"Gradients of {run['model']}"
    layers = [layer for layer, row in counts.items() if row]
    if not layers:
        return Section(title, missing=_NO_GRADIENTS)
    exponents = sorted({int(e) for layer in layers for e in counts[layer]})
    full = range(exponents[0], exponents[-1] + 1)
    shares = []
    for layer in layers:
        row = {int(e): count for e, count in counts[layer].items()}
        total = sum(row.values()) or 1
        shares.append([row.get(e, 0) / total or None for e in full])
    figure = page.empty_figure(
        height=120 + 26 * len(layers), xaxis_title="exponent of 2, unscaled"
    )
    figure.add_heatmap(
        x=list(full), y=layers, z=shares, colorscale="Teal",
        colorbar={"title": "share"},
        hovertemplate="%{y}: 2^%{x}, %{z:.1%}<extra></extra>",
    )  # fmt: skip
    smallest, normal, largest = _FLOAT16_EXPONENTS
    for begin, end, opacity in ((smallest, normal, 0.12), (normal, largest, 0.06)):
        figure.add_vrect(
            x0=begin - 0.5, x1=end + 0.5, fillcolor="black", opacity=opacity,
            line_width=0,
        )  # fmt: skip
    return Section(
        title,
        "Share of a layer's gradients by exponent. Shaded: what float16 holds, darker "
        "where with fewer bits; what lies to the left of it needs a loss scale.",
        figure=figure,
    )


def _numbers(verification: Verification) -> Section:
    # By their errors, first those that are no numbers.
    errors = {check: check.mixed.relative for check in verification.checks}
    checks = sorted(errors, key=lambda c: (errors[c] == errors[c], -errors[c]))
    rows = (
        (
            check.name,
            check.kind,
            float(f"{check.mixed.relative:.2g}"),
            float(f"{check.noise.relative:.2g}"),
            verification.verdict_on(check).value,
        )
        for check in checks
    )
    columns = ("tensor", "kind", "relative error", "float32 again", "verdict")
    return Section(
        f"Numbers of {verification.graph or 'a graph'}",
        verification.verdict,
        figure=_errors_figure(checks[:_TENSORS], verification.tolerance),
        table=PageTable(columns, tuple(rows)),
    )


def _errors_figure(checks: Sequence[TensorCheck], tolerance: float) -> Any:
    if not checks:
        return None
    names = [check.name for check in checks]
    series: dict[str, tuple[list[float | None], str]] = {
        "mixed precision": ([c.mixed.relative for c in checks], plans.LOW_COLOR),
        "float32 again": ([c.noise.relative for c in checks], plans.FLOAT32_COLOR),
        "inputs and weights rounded": (
            [c.rounded.relative if c.rounded else None for c in checks],
            plans.CAST_COLOR,
        ),
    }
    figure = page.empty_figure(
        xaxis_type="log",
        xaxis_title=f"relative error; dashed: what is allowed; {_LEAST_TEXT}",
        yaxis_autorange="reversed",
        height=160 + 24 * len(names),
    )
    for name, (errors, color) in series.items():
        shown = [None if e is None else max(e, _LEAST_ERROR) for e in errors]
        figure.add_scatter(
            y=names, x=shown, mode="markers", name=name,
            marker={"color": color, "size": 9},
            hovertemplate="%{y}: %{x:.2g}<extra></extra>",
        )  # fmt: skip
    figure.add_vline(x=tolerance, line_dash="dash", line_color=_BAD_COLOR)
    return figure


def _times_figure(prediction: Prediction) -> Any:
    figure = page.empty_figure(
        xaxis_type="log",
        xaxis_title="measured milliseconds",
        yaxis_type="log",
        yaxis_title="predicted milliseconds",
    )
    kinds = {"float32": plans.FLOAT32_COLOR, "mixed": plans.LOW_COLOR}
    seen: list[float] = []
    for kind, color in kinds.items():
        rows = [(row.op, getattr(row, kind)) for row in prediction.ops]
        rows.append(("whole step", getattr(prediction, kind)))
        rows = [
            (op, times)
            for op, times in rows
            if times.measured_seconds > 0.0 < times.predicted_seconds
        ]
        measured = [times.measured_seconds * _MILLI for _, times in rows]
        predicted = [times.predicted_seconds * _MILLI for _, times in rows]
        seen += measured + predicted
        figure.add_scatter(
            x=measured, y=predicted, text=[op for op, _ in rows], mode="markers",
            name=kind, marker={"color": color, "size": 9},
            hovertemplate="%{text}: measured %{x:.3g} ms, predicted %{y:.3g} ms"
            "<extra></extra>",
        )  # fmt: skip
    if not seen:
        return None
    ends = [min(seen), max(seen)]
    figure.add_scatter(
        x=ends, y=ends, mode="lines", line={"dash": "dash", "color": "gray"},
        name="as predicted", hoverinfo="skip",
    )  # fmt: skip
    return figure
