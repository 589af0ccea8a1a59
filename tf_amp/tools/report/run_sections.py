"""What a page shows of steps that were run: loss scale, gradients, numbers, times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tf_amp.report.page import PageTable, Section, empty_figure
from tf_amp.report.plans import (
    CAST_COLOR,
    FLOAT32_COLOR,
    LOW_COLOR,
)
from tf_amp.tools.explain.prediction import Prediction
from tf_amp.tools.report.record import Record
from tf_amp.tools.verify.verification import TensorCheck, Verification

_MILLI = 1e3
_BAD_COLOR = "#c1443c"
# Tensors of a chart; the least that a logarithmic axis shows as an error.
_TENSORS, _LEAST_ERROR = 40, 1e-9
# Exponents of float16: of its smallest number, its smallest normal one, its largest.
_FLOAT16_EXPONENTS = (-24, -14, 15)
_NO_GRADIENTS = "Gradients by layer: GradientHealthMonitor() beside PrecisionReport."
_LEAST_TEXT = f"below {_LEAST_ERROR:g}: equal"


def sections_of_runs(record: Record) -> Iterator[Section]:
    """Yield what was recorded of steps; for the rest, how to have it recorded."""
    yield from map(_loss_scale, record.runs)
    yield from map(_gradients, record.runs)
    yield from map(_numbers, record.verifications)
    for found in record.predictions:
        title = f"Predicted and measured times of {found.plan.graph or 'a graph'}"
        yield Section(title, found.summary(), figure=_times_figure(found))
    if hints := " ".join(_hints(record)):
        yield Section("Not recorded", missing=hints)


def _loss_scale(run: Mapping[str, Any]) -> Section:
    scales = run.get("scales", ())
    title = f"Loss scale of {run['model']}"
    if not scales:
        return Section(title, missing="No step was recorded.")
    steps, scale_texts, skipped_texts, origins = zip(*scales, strict=True)
    # What is not finite is written as text.
    values, skipped = list(map(float, scale_texts)), list(map(float, skipped_texts))
    figure = empty_figure(yaxis_type="log")
    figure.add_scatter(
        x=steps, y=values, mode="lines", line_shape="hv", name="loss scale",
        line_color=LOW_COLOR,
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
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="loss scale", dtick=1)
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
    figure = empty_figure(height=120 + 26 * len(layers))
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
    figure.update_xaxes(title="exponent of 2, unscaled")
    return Section(
        title,
        "Share of a layer's gradients by exponent. Shaded: what float16 holds, darker "
        "where with fewer bits; what lies to the left of it needs a loss scale.",
        figure=figure,
    )


def _numbers(found: Verification) -> Section:
    rows = (
        (
            check.name,
            check.kind,
            _short(check.mixed.relative),
            _short(check.noise.relative),
            found.verdict_on(check).value,
        )
        for check in _worst_first(found)
    )
    columns = ("tensor", "kind", "relative error", "float32 again", "verdict")
    return Section(
        f"Numbers of {found.graph or 'a graph'}",
        found.verdict,
        figure=_errors_figure(found),
        table=PageTable(columns, tuple(rows)),
    )


def _worst_first(found: Verification) -> list[TensorCheck]:
    """Return what was checked, what is not a number before all others."""
    errors = {check: check.mixed.relative for check in found.checks}
    return sorted(errors, key=lambda c: (errors[c] == errors[c], -errors[c]))


def _errors_figure(found: Verification) -> Any:
    checks = _worst_first(found)[:_TENSORS]
    if not checks:
        return None
    names = [check.name for check in checks]
    series: dict[str, tuple[list[float | None], str]] = {
        "mixed precision": ([c.mixed.relative for c in checks], LOW_COLOR),
        "float32 again": ([c.noise.relative for c in checks], FLOAT32_COLOR),
        "inputs and weights rounded": (
            [c.rounded.relative if c.rounded else None for c in checks],
            CAST_COLOR,
        ),
    }
    figure = empty_figure(xaxis_type="log", height=160 + 24 * len(names))
    for name, (errors, color) in series.items():
        shown = [None if e is None else max(e, _LEAST_ERROR) for e in errors]
        figure.add_scatter(
            y=names, x=shown, mode="markers", name=name,
            marker={"color": color, "size": 9},
            hovertemplate="%{y}: %{x:.2g}<extra></extra>",
        )  # fmt: skip
    figure.add_vline(x=found.tolerance, line_dash="dash", line_color=_BAD_COLOR)
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title=f"relative error; dashed: what is allowed; {_LEAST_TEXT}")
    return figure


def _times_figure(found: Prediction) -> Any:
    figure = empty_figure(xaxis_type="log", yaxis_type="log")
    kinds = {"float32": FLOAT32_COLOR, "mixed": LOW_COLOR}
    seen: list[float] = []
    for kind, color in kinds.items():
        rows = [(row.op, getattr(row, kind)) for row in found.ops]
        rows.append(("whole step", getattr(found, kind)))
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
    figure.update_xaxes(title="measured milliseconds")
    figure.update_yaxes(title="predicted milliseconds")
    return figure


def _hints(record: Record) -> Iterator[str]:
    """Yield how to have recorded what was not."""
    if not record.runs:
        yield "Loss scale by step: keras_callbacks.PrecisionReport(FOLDER) in `fit`."
        yield _NO_GRADIENTS
    if not record.compared:
        yield "Measured speed: a job whose steps are compared, with TF_AMP_LOG."
    if not record.verifications:
        yield "Numbers beside float32's: `tf-amp verify --json > FILE`."
    if not record.predictions:
        yield "Predicted beside measured: `tf-amp explain --measure --json`."


def _short(value: float) -> float:
    return float(f"{value:.2g}")
