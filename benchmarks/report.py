"""The table of the models, on the terminal and as Markdown."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from benchmarks.catalog import VARIANTS, entry, variant
from benchmarks.machine import Machine
from benchmarks.summary import REFERENCE, TOLERANCES, Cell, Row, mean_over_peers

# What the best other variant may be ahead before it counts, by 16-bit units.
_NOISE = {True: 1.04, False: 1.03}
# Variants that must not be slower than float32, and the noise beside them.
_FLOORS = ("again", "ours", "untuned")
_LEAST_SPEED_UP = 0.98
_WIDTHS = {"model": 8, "mode": 5, "float32 ms": 7, "against best": 7}
_LEGEND = (
    "Speed-up over float32 of a second float32 run (A/A, the noise), Keras's "
    "mixed_bfloat16 policy, TensorFlow's auto_mixed_precision_onednn_bfloat16, and "
    "tf-amp: ratio of the medians of all rounds, in brackets the lowest "
    "and highest ratio of one round. A round begins with empty databases, on which one "
    "process of tf-amp compares its steps, and the next one is timed. *no-op*: the "
    "executed graph holds no 16-bit operation. *against best*: time of tf-amp over "
    "that of the fastest of float32, the Keras policy and TensorFlow's pass."
)


def header(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the titles of the columns."""
    names = variants_shown(rows)
    peers = tuple(variant(name).title for name in names if name != REFERENCE)
    return ("model", "mode", "float32 ms", *peers, "against best")


def variants_shown(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the variants that occur, in the order of the catalog."""
    present = {cell.variant for row in rows for cell in row.cells}
    return tuple(each.name for each in VARIANTS if each.name in present)


def lines(rows: Sequence[Row]) -> tuple[tuple[str, ...], ...]:
    """Return the table's cells as text, a tuple per row."""
    names = variants_shown(rows)
    return tuple(_line(row, names) for row in rows)


def _line(row: Row, names: Iterable[str]) -> tuple[str, ...]:
    base = row.cell(REFERENCE)
    peers = (_cell(row, name) for name in names if name != REFERENCE)
    best = row.against_best
    return (
        entry(row.model).title,
        row.mode,
        _milliseconds(base.seconds if base else None),
        *peers,
        f"{best:.2f}" if best is not None else "-",
    )


def _cell(row: Row, name: str) -> str:
    cell = row.cell(name)
    if cell is None or cell.seconds is None:
        return "failed" if cell and cell.failure else "-"
    if cell.speed_up is None:
        return _milliseconds(cell.seconds) + " ms" + _remark(row, cell)
    spread = f"({cell.lowest:.2f}-{cell.highest:.2f})"
    return f"{cell.speed_up:.2f} {spread}{_remark(row, cell)}"


def _remark(row: Row, cell: Cell) -> str:
    wrong = " WRONG" if row.is_wrong(cell) else ""
    switched_on = cell.variant not in (REFERENCE, "again")
    return (" no-op" if switched_on and not cell.is_low else "") + wrong


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def remarks(rows: Sequence[Row], *, has_low_units: bool) -> tuple[str, ...]:
    """Return what deserves a sentence: the mean, what is slow, wrong or failed."""
    noise = _NOISE[has_low_units]
    slow = [row for row in rows if (row.against_best or 0.0) > noise]
    cells = [(row, cell) for row in rows for cell in row.cells]
    found = [_mean_remark(rows)] if any(row.against_peers for row in rows) else []
    found += [_floor_remark(rows, name) for name in _FLOORS if _cells(rows, name)]
    found += [_slow_remark(row, noise) for row in slow]
    found += [_wrong_remark(row, cell) for row, cell in cells if row.is_wrong(cell)]
    found += [_failure_remark(row, cell) for row, cell in cells if cell.failure]
    found += [_warning_remark(row, cell) for row, cell in cells if cell.warning]
    # Failures and warnings are those of a process, which runs both modes.
    return tuple(dict.fromkeys(found))


def _mean_remark(rows: Sequence[Row]) -> str:
    return (
        f"tf-amp is {mean_over_peers(rows):.2f} times as fast as the better peer of "
        "each row (geometric mean)."
    )


def _floor_remark(rows: Sequence[Row], name: str) -> str:
    """Say how many rows are slower than float32, and the worst of all rounds."""
    cells = _cells(rows, name)
    under = sum((cell.speed_up or 0.0) < _LEAST_SPEED_UP for cell in cells)
    worst = min(cell.lowest or 0.0 for cell in cells)
    return (
        f"{variant(name).title}: {under} of {len(cells)} medians under "
        f"{_LEAST_SPEED_UP} times as fast as float32; the lowest of one round is "
        f"{worst:.2f}."
    )


def _cells(rows: Sequence[Row], name: str) -> list[Cell]:
    found = (row.cell(name) for row in rows)
    return [cell for cell in found if cell is not None and cell.speed_up is not None]


def _slow_remark(row: Row, noise: float) -> str:
    return (
        f"{entry(row.model).title} {row.mode}: tf-amp takes {row.against_best:.2f} "
        f"times as long as the best other variant (noise: {noise})."
    )


def _wrong_remark(row: Row, cell: Cell) -> str:
    return (
        f"{entry(row.model).title} {row.mode}: {variant(cell.variant).title} is off by "
        f"{cell.error:.2g} relative to float32 (tolerance {TOLERANCES[row.mode]:.2g})."
    )


def _failure_remark(row: Row, cell: Cell) -> str:
    title = variant(cell.variant).title
    return f"{entry(row.model).title}: {title} failed, {cell.failure}."


def _warning_remark(row: Row, cell: Cell) -> str:
    title = variant(cell.variant).title
    return f"{entry(row.model).title}: {title} warned, {cell.warning}"


def terminal_table(rows: Sequence[Row]) -> Table:
    """Return the table for the terminal."""
    table = Table(title="Speed-up over float32")
    for title in header(rows):
        table.add_column(title, min_width=_WIDTHS.get(title, 11))
    for line in lines(rows):
        table.add_row(*line)
    return table


def markdown(rows: Sequence[Row], machine: Machine) -> str:
    """Return the table and the remarks on it."""
    found = remarks(rows, has_low_units=machine.has_low_units)
    listed = "\n".join(f"- {remark}" for remark in found)
    table = markdown_table(header(rows), lines(rows))
    return f"{table}\n\n{_LEGEND}\n\n{listed}"


def markdown_table(titles: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rule = ["---"] * len(titles)
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *cells))
