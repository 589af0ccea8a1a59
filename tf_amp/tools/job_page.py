"""A job: its plans and steps, read from files or collected, and the page of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from grappler_pass.planning.draft import Outcome
from grappler_pass.planning.plan import Plan
from tf_amp.compare.kept_file import is_number
from tf_amp.config import devices
from tf_amp.errors import ScriptMissingError, UnreadableRecordError
from tf_amp.report import codec, page, plan_page
from tf_amp.report.counts import counted
from tf_amp.report.page import Card, PageTable, Section
from tf_amp.report.plan_page import short_milliseconds
from tf_amp.report.plan_verdict import Observed
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
      source: the script or model that ran, as a command takes it; "" where that is not
        known.
      is_model: whether that is a SavedModel.
    """

    name: str = ""
    plans: tuple[Plan, ...] = ()
    compared: tuple[ComparedSteps, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    verifications: tuple[Verification, ...] = ()
    runs: tuple[Mapping[str, Any], ...] = ()
    loss_scale: LossScaleState | None = None
    left_out: tuple[str, ...] = ()
    source: str = ""
    is_model: bool = False


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
# Of the time of all graphs, from what on one is open, and how many are.
_LEAST_SHARE, _OPEN = 0.05, 3
# Tensors of a chart; the least that a logarithmic axis shows as an error.
_TENSORS, _LEAST_ERROR = 40, 1e-9
# Exponents of float16: of its smallest number, its smallest normal one, its largest.
_FLOAT16_EXPONENTS = (-24, -14, 15)
_NO_GRADIENTS = (
    "Gradients by layer: `GradientHealthMonitor()` beside `PrecisionReport`."
)
_RATIO = re.compile(r"\d+(\.\d+)?x")


def html_from_record(
    record: JobRecord, other: JobRecord | None = None, command: str = ""
) -> str:
    """Return a page that opens without a network.

    It takes Jinja2 and plotly; MissingExtraError without.

    Args:
      record: of the job.
      other: another job, which it is shown beside.
      command: what has asked for the page; "" where no command did.
    """
    sections = list(_graphs(record))
    # Behind the graph that takes longest, and its verdict.
    beside = [_compared(record, other)] if other is not None else []
    if len(record.plans) > 1:
        beside.append(_all_graphs(record))
    sections[1:1] = beside
    if cards := tuple(_cards(record)):
        sections.append(Section("Steps of the job", cards=cards))
    sections += sections_of_runs(record)
    if record.left_out:
        sections.append(Section("Left out", items=record.left_out))
    context = (
        *page.written_here(),
        f"{devices.cpu_model()}, {counted(os.cpu_count() or 1, 'core')}",
        *([f"`{command}`"] if command else []),
    )
    return page.page_from_sections(f"Precision of {record.name}", sections, context)


def _graphs(record: JobRecord) -> Iterator[Section]:
    """Yield the sections of graphs; those of little weight are folded, in one."""
    if not record.plans:
        yield Section("No graph", missing="The files have no plan of a graph.")
        return
    main, others = _plans_of_functions(record.plans)
    plans = [*main, *others]
    sizes = itertools.accumulate(len(_nodes_of(plan)) for plan in plans)
    # Those that there is room for, of those that take longest first; one at least.
    count = max(sum(size <= _MOST_NODES for size in sizes), 1)
    total = sum(plan.seconds_before for plan in main)
    folded = []
    for number, plan in enumerate(plans[:count]):
        observed = _observed(record, plan)
        is_main = number < len(main)
        is_large = is_main and plan.seconds_before >= _LEAST_SHARE * total
        if not number or (number < _OPEN and is_large):
            yield plan_page.section_of(plan, observed, is_brief=number > 0)
            continue
        if not is_main and plan.is_empty:
            # What was measured was the main plan.
            observed = dataclasses.replace(observed, ratio=None)
        section = plan_page.section_of(plan, observed, folded=_in_brief(plan))
        if not is_main:
            title = f"{section.title}, another plan"
            section = dataclasses.replace(section, title=title)
        folded.append(section)
    if folded:
        yield Section("Other graphs", "A click unfolds a graph.", parts=tuple(folded))


def _plans_of_functions(plans: Iterable[Plan]) -> tuple[list[Plan], list[Plan]]:
    """Return the main plan of each function, and the others.

    A function has several where it was traced again, or where its steps run both ways.
    The main one changes its types, if one does.
    """
    functions: list[list[Plan]] = []
    for plan in plans:
        same = (traced for traced in functions if _is_same_function(traced[0], plan))
        if traced := next(same, None):
            traced.append(plan)
        else:
            functions.append([plan])
    ranked = [sorted(traced, key=lambda plan: plan.is_empty) for traced in functions]
    return [main for main, *_ in ranked], [p for _, *rest in ranked for p in rest]


def _is_same_function(one: Plan, other: Plan) -> bool:
    """Return whether plans are of one function, which has few other operations."""
    if one.graph != other.graph:
        return False
    nodes, others = _nodes_of(one), _nodes_of(other)
    return 2 * len(nodes & others) > min(len(nodes), len(others))


def _nodes_of(plan: Plan) -> set[str]:
    return {row.slot.node for row in plan.decisions}


def _in_brief(plan: Plan) -> str:
    if plan.is_empty:
        return f"{page.digits(plan.seconds_after * _MILLI)} ms, stays float32"
    return _speed(plan)


def _observed(record: JobRecord, plan: Plan) -> Observed:
    """Return what the job has shown of the graph of a plan."""
    held = [
        verified.ok
        for verified in record.verifications
        if verified.graph == plan.graph and verified.is_changed
    ]
    known = Observed(
        holds=all(held) if held else None,
        source=record.source,
        is_model=record.is_model,
    )
    if compared := [each for each in record.compared if each.graph == plan.graph]:
        steps = compared[-1]
        return dataclasses.replace(
            known,
            ratio=steps.ratio,
            how=f"{counted(steps.pairs, 'pair')} of its own steps",
            is_applied=steps.is_faster,
        )
    measured = [each for each in record.predictions if each.plan == plan]
    if measured and measured[-1].mixed.measured_seconds > 0.0 and not plan.is_empty:
        return dataclasses.replace(
            known,
            ratio=measured[-1].measured_speedup,
            error=measured[-1].speedup_error,
            how=f"{counted(measured[-1].pairs, 'run')} on synthetic data",
        )
    return known


def _cards(record: JobRecord) -> Iterator[Card]:
    planned = {plan.graph for plan in record.plans}
    for compared in record.compared:
        if compared.graph in planned:
            continue
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
            f"{run['model']}: loss scale {page.digits(float(scale['loss_scale']))}, "
            f"{run['outcome']} after "
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
                rate = page.digits(times["examples_per_second"])
                note += f"; {rate} examples per second"
            yield Card("measured step", f"{times['step_ms_median']:.3g} ms", note)


def _all_graphs(record: JobRecord) -> Section:
    rows = tuple(
        (
            plan_page.title_of(plan),
            plan.low_dtype if not plan.is_empty else "float32",
            short_milliseconds(plan.seconds_float32),
            short_milliseconds(plan.seconds_after),
            plan.speedup_text,
            _measured(plan, observed),
        )
        for plan in record.plans[:_MOST_PLANS]
        for observed in [_observed(record, plan)]
    )
    count = len(record.plans)
    low = sum(not plan.is_empty for plan in record.plans)
    left_out = f" The first {_MOST_PLANS} are listed." * (count > _MOST_PLANS)
    columns = ("graph", "type", "float32 ms", "planned ms", "predicted", "measured")
    return Section(
        "All graphs",
        f"{count} graphs, the slowest first. The plans of {low} change something. "
        f"Times are those of one call.{left_out}",
        table=PageTable(columns, rows),
    )


def _measured(plan: Plan, observed: Observed) -> str:
    if observed.ratio is None:
        return "-"
    return f"{observed.ratio:.2f}x, beside {plan.compared_with}"


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
        f"{plan.seconds_float32 * _MILLI:.3g} to {plan.seconds_after * _MILLI:.3g} ms "
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
    hints = {
        "Loss scale by step: `keras_callbacks.PrecisionReport(FOLDER)` in `fit`.": (
            record.runs
        ),
        _NO_GRADIENTS: record.runs,
        "Measured speed: a job whose steps are compared, with `TF_AMP_LOG`.": (
            record.compared
        ),
        "Numbers beside those of float32: `tf-amp verify --json > FILE`.": (
            record.verifications
        ),
        "Predicted beside measured times: `tf-amp explain --measure --json`.": (
            record.predictions
        ),
    }
    if missing := tuple(hint for hint, recorded in hints.items() if not recorded):
        yield Section(
            "Not recorded", "The page would show more of a job that has:", items=missing
        )


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
        line_color=page.LOW_COLOR,
    )  # fmt: skip
    before = [0.0, *skipped]
    lost = [n for n, count in enumerate(skipped) if count > before[n]]
    figure.add_scatter(
        x=[steps[n] for n in lost],
        y=[values[n] for n in lost],
        text=[origins[n] or "origin not known" for n in lost],
        mode="markers", name="steps skipped", marker_color=page.BAD_COLOR,
        hovertemplate="step %{x}: %{text}<extra></extra>",
    )  # fmt: skip
    return Section(
        title,
        f"{counted(int(skipped[-1]), 'step')} skipped; a point names the operation "
        "that overflowed first.",
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
    for begin, end, opacity in ((smallest, normal, 0.3), (normal, largest, 0.15)):
        figure.add_vrect(
            x0=begin - 0.5, x1=end + 0.5, fillcolor="#808080", opacity=opacity,
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
        f"Dashed is what is allowed. Errors below {_LEAST_ERROR:g} are shown there.",
        lead=verification.verdict,
        figure=_errors_figure(checks[:_TENSORS], verification.tolerance),
        table=PageTable(columns, tuple(rows)),
    )


def _errors_figure(checks: Sequence[TensorCheck], tolerance: float) -> Any:
    if not checks:
        return None
    names = [check.name for check in checks]
    series: dict[str, tuple[list[float | None], str]] = {
        "mixed precision": ([c.mixed.relative for c in checks], page.LOW_COLOR),
        "float32 again": ([c.noise.relative for c in checks], page.FLOAT32_COLOR),
        "inputs and weights rounded": (
            [c.rounded.relative if c.rounded else None for c in checks],
            page.CAST_COLOR,
        ),
    }
    figure = page.empty_figure(
        xaxis_type="log",
        xaxis_title="relative error",
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
    figure.add_vline(x=tolerance, line_dash="dash", line_color=page.BAD_COLOR)
    return figure


def _times_figure(prediction: Prediction) -> Any:
    figure = page.empty_figure(
        xaxis_type="log",
        xaxis_title="measured milliseconds",
        yaxis_type="log",
        yaxis_title="predicted milliseconds",
    )
    kinds = {"float32": page.FLOAT32_COLOR, "mixed": page.LOW_COLOR}
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
    decades = range(math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1])) + 1)
    ticks = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    ticked = {"tickvals": ticks, "ticktext": list(map(page.digits, ticks))}
    figure.update_layout(xaxis=ticked, yaxis=ticked)
    figure.add_scatter(
        x=ends, y=ends, mode="lines", line={"dash": "dash", "color": "gray"},
        name="as predicted", hoverinfo="skip",
    )  # fmt: skip
    return figure
