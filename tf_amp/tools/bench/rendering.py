"""A record as a table on the terminal, as a chart, and as a page without a network."""

from __future__ import annotations

import io
import itertools
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tf_amp.report import page
from tf_amp.report.display import FittedTable
from tf_amp.report.page import PageTable, Section
from tf_amp.tools.bench.job import AGAIN, FLOAT32, SCRIPT, BenchJob
from tf_amp.tools.bench.record import (
    FASTER,
    FEWEST_ROUNDS,
    SLOWER,
    BenchRecord,
    BenchRow,
    SpeedUp,
)

# Beyond it, few differences that methods make are seen.
_LARGE_NOISE = 0.25
# Beyond it, what float32 computes twice differs by more than the order of its sums.
_UNSEEDED = 1e-3
_STYLES = {FASTER: "green", SLOWER: "red"}
# A file or a pipe folds no lines.
_WIDE = 200
TITLES = (
    "batch",
    "method",
    "step ms",
    "items/s",
    "speed-up (rounds)",
    "verdict",
    "first step s",
    "peak MiB",
    "error",
    "16-bit ops",
)
# What a narrow terminal does without, first what matters least.
_SPARE = ("16-bit ops", "peak MiB", "first step s", "error", "items/s")


def cells(row: BenchRow) -> tuple[str, ...]:
    """Return the cells of a row, in the order of TITLES."""
    batch = "-" if row.batch is None else str(row.batch)
    if row.step_seconds is None:
        return (batch, row.method, "failed", *("-",) * (len(TITLES) - 3))
    items, speed_up, ops, verdict = "-", "-", "?", row.verdict
    if (rate := row.items_per_second) is not None:
        items = f"{rate:,.0f}" if rate >= 1000.0 else f"{rate:.4g}"
    if (ratio := row.speed_up) is not None:
        speed_up = f"{ratio.median:.2f} ({ratio.lowest:.2f}-{ratio.highest:.2f})"
        if row.method == AGAIN:
            verdict = f"{verdict} {_noise(ratio):.0%}"
    if row.ops is not None:
        no_op = " no-op" if row.is_no_op else ""
        ops = f"{row.ops.low} of {row.ops.total}{no_op}"
    return (
        batch,
        row.method,
        f"{row.step_seconds * 1e3:.4g}",
        items,
        speed_up,
        ", ".join(filter(None, (verdict, "failed" * bool(row.failure)))) or "-",
        "-" if row.first_step_seconds is None else f"{row.first_step_seconds:.1f}",
        f"{row.peak_bytes / 2**20:.0f}",
        "-" if row.error is None else f"{row.error:.1e}",
        ops,
    )


def _noise(again: SpeedUp) -> float:
    """Return by which part float32 was off from itself in a round."""
    return math.expm1(again.noise)


def title_of(job: BenchJob) -> str:
    """Return what was measured, in one line."""
    parts = (pathlib.PurePath(job.target.name).name, *job.target.arguments)
    return f"{' '.join(parts)}, {job.mode}"


def context_lines(record: BenchRecord) -> tuple[str, ...]:
    """Return where and when it was measured, a line for each."""
    context = record.context
    settings = " ".join(f"{name}={value}" for name, value in record.job.settings)
    return (
        context.processor,
        ", ".join(f"{name} {version}" for name, version in context.versions),
        context.date + (f", revision {context.revision}" if context.revision else ""),
        *([f"tf-amp with {settings}"] if settings else []),
    )


def remarks(record: BenchRecord) -> tuple[str, ...]:
    """Return what the table does not say: the noise, no-ops, failures."""
    return tuple(dict.fromkeys(_remarks(record, record.summary)))


def _remarks(record: BenchRecord, rows: Sequence[BenchRow]) -> Iterator[str]:
    if timed := dict.fromkeys(row.timed for row in rows if row.timed):
        rounds = max(row.rounds for row in rows)
        medians = "one round" if rounds == 1 else f"medians of {rounds} rounds"
        yield f"timed: {', '.join(timed)}; {medians}."
    for row in rows:
        where = row.method if row.batch is None else f"{row.method}, batch {row.batch}"
        if row.method == AGAIN and (row.error or 0.0) > _UNSEEDED:
            yield (
                f"{where}: results are off by {row.error:.1e}, as the program draws "
                "anew each time; smaller errors say nothing."
            )
        if row.failure:
            yield f"{where}: failed, {row.failure}."
        if row.warning:
            yield f"{where}: {row.warning}"
        if row.method == FLOAT32 and row.ops is not None and row.ops.low:
            yield (
                f"{where}: executed {row.ops.low} 16-bit operations; the program "
                "itself asks for them."
            )
        if row.error is not None and math.isnan(row.error):
            yield f"{where}: results are not finite."
    # A line for each method, with what tf-amp has said of the first batch.
    no_ops = [row for row in rows if row.is_no_op]
    for method in dict.fromkeys(row.method for row in no_ops):
        of_method = [row for row in no_ops if row.method == method]
        sizes = ", ".join(str(row.batch) for row in of_method if row.batch is not None)
        where = f"{method}, batch {sizes}" if sizes else method
        said = f": {of_method[0].note}" if of_method[0].note else ""
        yield f"{where}: a no-op, no 16-bit operation was executed{said}"
    if ended := {each.method for each in record.samples if each.was_ended}:
        yield (
            f"ended after {record.job.seconds:g} s, and measured up to there: "
            f"{', '.join(sorted(ended))}."
        )


def advice(record: BenchRecord) -> tuple[str, ...]:
    """Return a line with what to do next where the noise hides most differences.

    More rounds than the fewest do not help: the noise is that of the worst of them.
    """
    again = [(row, row.speed_up) for row in record.summary if row.method == AGAIN]
    noises = [_noise(speed_up) for _, speed_up in again if speed_up is not None]
    if max(noises, default=0.0) <= _LARGE_NOISE:
        return ()
    is_few = min(row.rounds for row, _ in again) < FEWEST_ROUNDS
    steps = (
        "more steps in the script"
        if record.job.target.kind == SCRIPT
        else "longer --step-seconds"
    )
    ways = (steps, "larger batches", *([f"--rounds {FEWEST_ROUNDS}"] if is_few else []))
    return (
        f"The noise is up to {max(noises):.0%} and hides smaller differences; next: "
        f"{', '.join(ways[:-1])} or {ways[-1]}, on a machine that does nothing else.",
    )


def print_record(record: BenchRecord) -> None:
    """Print the table of what was measured, and the remarks on it."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDE)
    rows = []
    for _, of_batch in itertools.groupby(record.summary, lambda row: row.batch):
        for row in of_batch:
            style = "" if row.failure else _STYLES.get(row.verdict, "")
            rows.append([Text(cell, style) for cell in cells(row)])
        # Sizes of batches stand apart.
        rows.append([Text()] * len(TITLES))
    table = FittedTable(
        TITLES,
        rows,
        numbers=[name for name in TITLES if name not in ("method", "verdict")],
        spare=_SPARE,
        names=TITLES.index("method"),
        has_rule=False,
    )
    console.print(Text(title_of(record.job), style="bold"))
    console.print(table)
    for line in (*remarks(record), *context_lines(record), *advice(record)):
        console.print(Text(line), soft_wrap=True)


_WIDTH = 0.8
_READING = "Medians of all rounds; lines reach from the lowest to the highest round."


def check_extra() -> None:
    """Raise MissingExtraError unless charts can be drawn."""
    with page.extra("plots", "charts"):
        import matplotlib.figure  # noqa: F401


def png_of(record: BenchRecord) -> bytes:
    """Return the chart as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    drawn = [*groups(record)]
    width = _WIDTH / max(len(drawn), 1)
    batches = [*map(label, record.job.batches)]
    for number, (method, rows) in enumerate(drawn):
        offset = (number - (len(drawn) - 1) / 2) * width
        places = [batches.index(label(batch)) + offset for batch, _ in rows]
        heights = [each.median for _, each in rows]
        bars = error_bars([each for _, each in rows])
        axes.bar(places, heights, width, yerr=bars, capsize=2, label=method)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(batches)), batches)
    axes.set(
        xlabel="batch size",
        ylabel="speed-up over float32",
        title=title_of(record.job),
    )
    figure.legend(loc="outside lower center", ncols=max(len(drawn), 1))
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def groups(
    record: BenchRecord,
) -> Iterator[tuple[str, list[tuple[int | None, SpeedUp]]]]:
    """Yield each method, and its speed-ups by batch size."""
    for method in record.job.methods:
        speed_ups = [
            (row.batch, row.speed_up)
            for row in record.summary
            if row.method == method and row.speed_up is not None
        ]
        if method != FLOAT32 and speed_ups:
            yield method, speed_ups


def error_bars(speed_ups: Sequence[SpeedUp]) -> tuple[list[float], list[float]]:
    """Return lengths below and above; a median may lie outside of its rounds."""
    below = [max(each.median - each.lowest, 0.0) for each in speed_ups]
    above = [max(each.highest - each.median, 0.0) for each in speed_ups]
    return below, above


def label(batch: int | None) -> str:
    """Return what a batch size is called on an axis."""
    return "as it is" if batch is None else str(batch)


def page_of(record: BenchRecord) -> str:
    """Return the page of what was measured; MissingExtraError without what draws it."""
    # The first column of a page is the widest: the method before the batch.
    columns, *shown = (
        (method, batch, *others)
        for batch, method, *others in (TITLES, *map(cells, record.summary))
    )
    said = tuple((each,) for each in (*remarks(record), *advice(record)))
    sections = (
        Section("Speed-up over float32", _READING, figure=_figure(record)),
        Section("All figures", table=PageTable(columns, tuple(shown))),
        Section("Remarks", table=PageTable(("what the figures do not say",), said)),
    )
    return page.page_from_sections(
        f"{title_of(record.job)}: methods side by side",
        sections,
        "; ".join(context_lines(record)),
    )


def _figure(record: BenchRecord) -> Any:
    figure = page.empty_figure(
        height=420,
        xaxis_title="batch size",
        xaxis_type="category",
        yaxis_title="speed-up",
    )
    for method, speed_ups in groups(record):
        below, above = error_bars([each for _, each in speed_ups])
        figure.add_bar(
            name=method,
            x=[label(batch) for batch, _ in speed_ups],
            y=[each.median for _, each in speed_ups],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": above,
                "arrayminus": below,
            },
        )
    figure.add_hline(1.0)
    return figure
