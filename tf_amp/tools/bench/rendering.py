"""A record as a table on the terminal, as a chart, and as a page without a network."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from tf_amp.report import page
from tf_amp.report.display import FittedTable, show
from tf_amp.report.page import PageTable, Section
from tf_amp.tools.bench.answer import answers
from tf_amp.tools.bench.job import AGAIN, FLOAT32, SCRIPT, BenchJob
from tf_amp.tools.bench.record import (
    FASTER,
    FEWEST_ROUNDS,
    SLOWER,
    BenchRecord,
    BenchRow,
    SpeedUp,
)

# Percent; beyond it, few differences that methods make are seen.
_LARGE_NOISE = 25
# Beyond it, what float32 computes twice differs by more than the order of its sums.
_UNSEEDED = 1e-3
_STYLES = {FASTER: "green", SLOWER: "red"}
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
# Where a script has a batch size of its own, they are not known.
_OF_BATCHES = {"batch", "items/s"}


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
            verdict = f"{verdict} {ratio.noise}%"
    if row.ops is not None:
        ops = f"{row.ops.low} of {row.ops.total} {change_of(row)}".rstrip()
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


def title_of(job: BenchJob) -> str:
    """Return what was measured, in one line."""
    parts = (job.target.title, *job.target.arguments)
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
                "other numbers each time; smaller errors say nothing."
            )
        if row.failure:
            yield f"{where}: failed, {row.failure}."
        if row.warning:
            yield f"{where}: {row.warning}"
        if row.compared and row.compared != row.note:
            yield f"{where}, within one process: {row.compared}"
        if row.method == FLOAT32 and row.ops is not None and row.ops.low:
            yield (
                f"{where}: executed {row.ops.low} 16-bit operations; the program "
                "itself asks for them."
            )
        if row.float32_ops is not None and row.ops is not None:
            yield (
                f"{where}: float32 with a changed graph, of {row.ops.total} operations "
                f"in place of {row.float32_ops}{_said(row)}"
            )
        if row.error is not None and math.isnan(row.error):
            yield f"{where}: results are not finite."
    # A line for each method, with what tf-amp has said of the first batch.
    no_ops = [row for row in rows if row.is_no_op]
    for method in dict.fromkeys(row.method for row in no_ops):
        of_method = [row for row in no_ops if row.method == method]
        sizes = ", ".join(str(row.batch) for row in of_method if row.batch is not None)
        where = f"{method}, batch {sizes}" if sizes else method
        yield f"{where}: a no-op, float32's graph was executed{_said(of_method[0])}"
    if ended := {each.method for each in record.samples if each.was_ended}:
        yield (
            f"ended after {record.job.seconds:g} s, and measured up to there: "
            f"{', '.join(sorted(ended))}."
        )


def change_of(row: BenchRow) -> str:
    """Say in a word what has become of a graph that stayed float32; "" if unknown."""
    return "changed" * (row.float32_ops is not None) or "no-op" * row.is_no_op


def _said(row: BenchRow) -> str:
    return f": {row.note}" if row.note else ""


def advice(record: BenchRecord) -> tuple[str, ...]:
    """Return a line with what to do next where the noise hides most differences.

    More rounds than the fewest do not help: the noise is that of most rounds.
    """
    again = [(row, row.speed_up) for row in record.summary if row.method == AGAIN]
    noises = [speed_up.noise for _, speed_up in again if speed_up is not None]
    if max(noises, default=0) <= _LARGE_NOISE:
        return ()
    is_few = min(row.rounds for row, _ in again) < FEWEST_ROUNDS
    steps = (
        "more steps in the script"
        if record.job.target.kind == SCRIPT
        else "longer --step-seconds"
    )
    ways = (steps, "larger batches", *([f"--rounds {FEWEST_ROUNDS}"] if is_few else []))
    return (
        f"The noise is up to {max(noises)}% and hides smaller differences; next: "
        f"{', '.join(ways[:-1])} or {ways[-1]}, on a machine that does nothing else.",
    )


def print_record(record: BenchRecord) -> None:
    """Print the table of what was measured, the remarks on it, and the answer."""
    unknown = set() if _has_batches(record) else _OF_BATCHES
    titles = [title for title in TITLES if title not in unknown]
    rows = []
    for _, of_batch in itertools.groupby(record.summary, lambda row: row.batch):
        for row in of_batch:
            style = "" if row.failure else _STYLES.get(row.verdict, "")
            shown = zip(TITLES, cells(row), strict=True)
            rows.append([Text(cell, style) for t, cell in shown if t not in unknown])
        # Sizes of batches stand apart.
        rows.append([Text()] * len(titles))
    table = FittedTable(
        titles,
        rows,
        numbers=[name for name in titles if name not in ("method", "verdict")],
        spare=[name for name in _SPARE if name not in unknown],
        names=titles.index("method"),
        has_rule=False,
    )
    show(Text(title_of(record.job), style="bold"), table)
    # Commands in them can be copied where no line is folded.
    for line in (*remarks(record), *context_lines(record), *advice(record)):
        print(line)
    if sentences := tuple(answers(record)):
        print("", *sentences, sep="\n")


_WIDTH = 0.8
_READING = (
    "Bars are medians of all rounds. The thin lines reach from the lowest to the "
    "highest round."
)
# So that no browser folds what is short.
_UNFOLDED = str.maketrans({" ": "\N{NO-BREAK SPACE}", "-": "\N{NON-BREAKING HYPHEN}"})
_NO_OPS = " Hatched are no-ops: the graph that ran was float32's."
# In charts, of methods in their order, but for float32; text on them is dark.
_COLORS = ("#b3bdcd", "#f0b04c", "#7fa6c4", "#3fb8a8", "#e29a93", "#b9a5c2")
_ON_COLOR = "#12202c"


def check_extra() -> None:
    """Raise MissingExtraError unless charts can be drawn."""
    with page.extra("plots", "charts"):
        import matplotlib.figure  # noqa: F401


@dataclasses.dataclass(frozen=True)
class ChartBars:
    """The bars of one method.

    Attributes:
      method: its name.
      color: of all its bars.
      places: on the axis: batch sizes, or the method where there is but one size.
      rows: what was measured, each with a speed-up.
    """

    method: str
    color: str
    places: tuple[str, ...]
    rows: tuple[BenchRow, ...]

    @property
    def speed_ups(self) -> list[SpeedUp]:
        """Return the speed-ups of all bars."""
        return [row.speed_up for row in self.rows if row.speed_up is not None]

    @property
    def lengths(self) -> tuple[list[float], list[float]]:
        """Return how far lines reach below and above medians.

        A median may lie outside of its rounds.
        """
        below = [max(each.median - each.lowest, 0.0) for each in self.speed_ups]
        above = [max(each.highest - each.median, 0.0) for each in self.speed_ups]
        return below, above

    @property
    def texts(self) -> list[str]:
        """Return the values that stand on the bars."""
        return [f"{each.median:.2f}" for each in self.speed_ups]


def bars_of(record: BenchRecord) -> tuple[ChartBars, ...]:
    """Return the bars of each method but float32, by batch size if there are some."""
    colors = itertools.cycle(_COLORS)
    bars = []
    for method in record.job.methods:
        if method == FLOAT32:
            continue
        color = next(colors)
        rows = [r for r in record.summary if r.method == method and r.speed_up]
        is_grouped = _is_grouped(record)
        places = [str(row.batch) if is_grouped else method for row in rows]
        if rows:
            bars.append(ChartBars(method, color, tuple(places), tuple(rows)))
    return tuple(bars)


def png_of(record: BenchRecord) -> bytes:
    """Return the chart as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    drawn = bars_of(record)
    places = list(dict.fromkeys(place for bars in drawn for place in bars.places))
    is_grouped = _is_grouped(record)
    width = _WIDTH / max(len(drawn) if is_grouped else 1, 1)
    for number, bars in enumerate(drawn):
        offset = (number - (len(drawn) - 1) / 2) * width if is_grouped else 0.0
        shown = axes.bar(
            [places.index(place) + offset for place in bars.places],
            [each.median for each in bars.speed_ups],
            width,
            yerr=bars.lengths,
            capsize=2,
            label=bars.method,
            color=bars.color,
            edgecolor=_ON_COLOR,
            linewidth=0.5,
        )
        for bar, row, text in zip(shown, bars.rows, bars.texts, strict=True):
            bar.set_hatch("//" if row.is_no_op else "")
            middle = bar.get_x() + bar.get_width() / 2
            axes.text(middle, 0.02, text, ha="center", fontsize=8, color=_ON_COLOR)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(places)), places)
    axes.set(ylabel="speed-up over float32", title=title_of(record.job))
    axes.set_xlabel(_axis_title(record))
    if is_grouped:
        figure.legend(loc="outside lower center", ncols=max(len(drawn), 1))
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _has_batches(record: BenchRecord) -> bool:
    return any(batch is not None for batch in record.job.batches)


def _is_grouped(record: BenchRecord) -> bool:
    """Return whether a chart has a group of bars for each of some batch sizes."""
    return len(record.job.batches) > 1


def _axis_title(record: BenchRecord) -> str:
    if _is_grouped(record):
        return "batch size"
    (batch,) = record.job.batches
    return "" if batch is None else f"batch size {batch}"


def page_of(record: BenchRecord, command: str = "") -> str:
    """Return the page of what was measured; MissingExtraError without what draws it.

    `command` has asked for it; empty where no command did.
    """
    # The first column of a page is the widest: the method before the batch.
    columns, *shown = (
        (method, batch, step, items, speed_up.translate(_UNFOLDED), *others)
        for batch, method, step, items, speed_up, *others in (
            TITLES,
            *map(cells, record.summary),
        )
    )
    numbers = PageTable(columns, tuple(shown))
    if not _has_batches(record):
        numbers = functools.reduce(PageTable.without, _OF_BATCHES, numbers)
    has_no_ops = any(row.is_no_op for row in record.summary)
    sections = (
        Section(
            "Speed-up over float32",
            f"{_READING}{_NO_OPS * has_no_ops}",
            lead=" ".join(answers(record)),
            figure=_figure(record),
        ),
        Section("All figures", table=numbers),
        Section("Remarks", items=(*remarks(record), *advice(record))),
    )
    title = f"{title_of(record.job)}: methods side by side"
    context = (*context_lines(record), *([f"`{command}`"] if command else []))
    return page.page_from_sections(title, sections, context)


def _figure(record: BenchRecord) -> Any:
    is_grouped = _is_grouped(record)
    figure = page.empty_figure(
        height=400, yaxis_title="times as fast as float32", showlegend=is_grouped
    )
    figure.update_xaxes(type="category", title=_axis_title(record))
    for bars in bars_of(record):
        below, above = bars.lengths
        figure.add_bar(
            name=bars.method,
            x=bars.places,
            y=[each.median for each in bars.speed_ups],
            width=None if is_grouped else [0.7],
            text=bars.texts,
            textposition="inside",
            insidetextanchor="start",
            textfont={"color": _ON_COLOR},
            marker={
                "color": bars.color,
                "line": {"color": _ON_COLOR, "width": 0.5},
                "pattern": {
                    "shape": ["/" if row.is_no_op else "" for row in bars.rows],
                    "fgcolor": _ON_COLOR,
                    "solidity": 0.15,
                },
            },
            error_y={
                "type": "data",
                "symmetric": False,
                "array": above,
                "arrayminus": below,
            },
        )
    figure.add_hline(1.0, line_color="gray")
    return figure
