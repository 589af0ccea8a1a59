"""The tables of models of a GPU's size, and what follows from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import geometric_mean, median

from benchmarks.gpu.figures import Figures, Measured
from benchmarks.gpu.jobs import MODELS, VARIANTS
from benchmarks.report import markdown_table, milliseconds
from tf_amp.tools.bench.job import KERAS, OURS, TENSORFLOW

# What counts as predicted, and as no more memory than Keras' policy takes.
_NEAR = 0.25
_MOST_MEMORY = 1.05
_NO_ROOM = re.compile(r"ResourceExhausted|out of memory|OOM", re.IGNORECASE)
_PEERS = (KERAS, TENSORFLOW)
_SPREAD = (median, min, max)
_MODES = {True: "compiled", False: "graph mode"}
_TITLES = (
    "variant",
    "mode",
    "ms",
    "times as fast as float32",
    "as the better peer",
    "losses off by",
    "peak MiB",
    "predicted ms",
)
LEGEND = (
    "Each figure is of a training step on one batch, without dropout. float32 is as "
    "TensorFlow computes it by itself, TensorFloat-32 included. A step is *compiled* "
    "under `jit_compile=True`; *graph mode* is without it. *ms* is the median of the "
    "rounds; in brackets stand the fastest and the slowest. Variants of a job take "
    "turns with a float32 of their own. The speed-up is over that; only the float32 "
    "of a mode's first job has a row. The *better peer* is the fastest of Keras' "
    "policy and TensorFlow's pass in either type, by speed-ups over float32. "
    "TensorFlow's pass rewrites nothing of what XLA compiles. *losses off by* is the "
    "distance of the losses of the first 8 steps to float32's, relative to them. "
    "*peak MiB* is the most memory of the device that a step holds at once. "
    "*predicted ms* is what tf-amp's plan says: the step as tf-amp traces it, in "
    "float32 and as planned. It is **bold** where the second is off by more than 25 "
    "%. tf-amp plans by prices alone here: it compares no steps, since other "
    "processes compile meanwhile."
)


def markdown(results: Sequence[Measured], size: str) -> str:
    """Return all tables, what their columns mean, and what follows from them.

    Args:
      results: of all jobs.
      size: of the models.
    """
    names = {f.first.device for m in results for f in m.figures if f.first is not None}
    parts = [f"- Device: {', '.join(sorted(names))}; size of the models: {size}"]
    for model in dict.fromkeys(each.job.model for each in results):
        parts.append(f"### {MODELS[model].title}")
        parts.append(table([each for each in results if each.job.model == model]))
    listed = "\n".join(f"- {remark}" for remark in remarks(results))
    return "\n\n".join((*parts, LEGEND, listed))


def table(results: Sequence[Measured]) -> str:
    """Return the table of one model."""
    rows = []
    for is_compiled, mode in _MODES.items():
        jobs = [each for each in results if each.job.is_compiled == is_compiled]
        for number, measured in enumerate(jobs):
            rows += [
                _cells(measured, figures, mode, fastest(jobs, _PEERS))
                for figures in measured.figures
                # Later jobs have a float32 for their speed-ups alone.
                if figures is not measured.base or not number
            ]
    return markdown_table(_TITLES, rows)


def fastest(jobs: Sequence[Measured], methods: Sequence[str]) -> float | None:
    """Return the largest speed-up of some methods in any type; None without any."""
    found = [
        speed_up.median
        for measured in jobs
        for figures in measured.figures
        if VARIANTS[figures.variant].method in methods
        and (speed_up := measured.speed_up(figures)) is not None
    ]
    return max(found, default=None)


def _cells(
    measured: Measured, figures: Figures, mode: str, peer: float | None
) -> tuple[str, ...]:
    if not figures.seconds:
        failed = "out of memory" if _NO_ROOM.search(figures.failure) else "failed"
        return (figures.title, mode, failed, *["-"] * 5)
    speed_up, error = measured.speed_up(figures), measured.losses_error(figures)
    is_base = figures is measured.base
    is_ours = VARIANTS[figures.variant].method == OURS
    against = speed_up.median / peer if is_ours and speed_up and peer else None
    first = figures.first
    return (
        figures.title,
        mode,
        "{} ({}-{})".format(*(milliseconds(f(figures.seconds)) for f in _SPREAD)),
        "-"
        if is_base or speed_up is None
        else f"{speed_up.median:.2f} ({speed_up.lowest:.2f}-{speed_up.highest:.2f})",
        "-" if against is None else f"{against:.2f}",
        "-" if is_base or error is None else f"{error:.1g}",
        "-" if first is None else _mebibytes(first.peak_bytes),
        _predicted(figures),
    )


def _mebibytes(count: int) -> str:
    size = count / 2**20
    return f"{size:.3g}" if size < 100 else f"{size:.0f}"


def _predicted(figures: Figures) -> str:
    if figures.first is None or figures.first.predicted is None:
        return "-"
    before, after = map(milliseconds, figures.first.predicted)
    return f"{before} -> {after if _is_near(figures) else f'**{after}**'}"


def _is_near(figures: Figures) -> bool:
    """Return whether a step took about what was predicted of it as planned."""
    assert figures.first is not None and figures.first.predicted is not None
    _, after = figures.first.predicted
    return abs(after / median(figures.seconds) - 1.0) <= _NEAR


def remarks(results: Sequence[Measured]) -> Iterator[str]:
    """Yield what follows from the tables: means, predictions, memory, failures."""
    for is_compiled, mode in _MODES.items():
        by_model: dict[str, list[Measured]] = {}
        for each in results:
            if each.job.is_compiled == is_compiled:
                by_model.setdefault(each.job.model, []).append(each)
        ratios = [
            ours / peer
            for jobs in by_model.values()
            if (ours := fastest(jobs, (OURS,))) and (peer := fastest(jobs, _PEERS))
        ]
        if ratios:
            yield (
                f"{mode}: tf-amp in its faster type is {geometric_mean(ratios):.2f} "
                f"times as fast as the better peer (geometric mean of {len(ratios)} "
                f"models; the lowest is {min(ratios):.2f})."
            )
    yield from _predictions(results)
    yield from _memory(results)
    for measured in results:
        for figures in measured.figures:
            what = f"{MODELS[measured.job.model].title}, "
            what += f"{_MODES[measured.job.is_compiled]}: {figures.title}"
            if figures.failure:
                yield f"{what} failed: {figures.failure}."
            if figures.note:
                yield f"{what} said: {figures.note}"


def _predictions(results: Sequence[Measured]) -> Iterator[str]:
    near: dict[str, list[bool]] = {}
    for measured in results:
        for figures in measured.figures:
            if figures.seconds and figures.first and figures.first.predicted:
                near.setdefault(measured.job.model, []).append(_is_near(figures))
    if near:
        yield (
            f"tf-amp's steps are within {_NEAR:.0%} of what it predicted for "
            f"{sum(map(all, near.values()))} of {len(near)} models, in each type and "
            "mode that was measured."
        )


def _memory(results: Sequence[Measured]) -> Iterator[str]:
    """Hold the peak of tf-amp against that of Keras' policy in the same job."""
    ratios = []
    for measured in results:
        peaks = {
            VARIANTS[each.variant].method: each.first.peak_bytes
            for each in measured.figures
            if each.first is not None
        }
        if peaks.get(KERAS) and OURS in peaks:
            ratios.append(peaks[OURS] / peaks[KERAS])
    if ratios:
        more = sum(ratio > _MOST_MEMORY for ratio in ratios)
        yield (
            f"tf-amp takes more than {_MOST_MEMORY} times the peak memory of Keras' "
            f"policy in {more} of {len(ratios)} cases. The highest is "
            f"{max(ratios):.2f} times."
        )
