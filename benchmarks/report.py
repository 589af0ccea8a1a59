"""The table of the models as Markdown."""

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.benches import TOLERANCES, Bench, mean_over_peers
from benchmarks.catalog import VARIANTS, Variant, entry, variant
from benchmarks.machine import Machine
from tf_amp.tools.bench.job import FLOAT32
from tf_amp.tools.bench.record import BenchRow
from tf_amp.tools.bench.rendering import change_of

# What the best other variant may be ahead before it counts, by 16-bit units.
_NOISE = {True: 1.04, False: 1.03}
# Variants that must not be slower than float32, and the noise beside them.
_FLOORS = ("again", "ours", "untuned")
_LEAST_SPEED_UP = 0.98
_IN_FLOAT32 = variant("fused").method
_LEGEND = (
    "Speed-up over float32 of a second float32 run (A/A, the noise), Keras's "
    "mixed_bfloat16 policy, TensorFlow's auto_mixed_precision_onednn_bfloat16, and "
    "tf-amp: ratio of the medians of all rounds, in brackets the lowest "
    "and highest ratio of one round. A round begins with empty caches, on which one "
    "process of tf-amp compares its steps, and the next one is timed. *rounds*: of a "
    "row; in square brackets those of a cell that has others. *fused float32*: "
    "the fusions alone, *float16*: tf-amp in that type, each in turns "
    "with a float32 of its own. *no-op*: the graph that ran was float32's. *changed*: "
    "it was another one, without 16-bit operations. *against best*: time of tf-amp "
    "over that of the fastest of float32, the Keras policy and TensorFlow's pass; -: "
    "one of them was not run."
)


def markdown(benches: Sequence[Bench], machine: Machine) -> str:
    """Return the table and the remarks on it."""
    found = remarks(benches, has_low_units=machine.has_low_units)
    listed = "\n".join(f"- {remark}" for remark in found)
    shown = {row.method for bench in benches for row in bench.rows} - {FLOAT32}
    peers = [each for each in VARIANTS if each.method in shown]
    titles = [each.title for each in peers]
    table = markdown_table(
        ("model", "mode", "rounds", "float32 ms", *titles, "against best"),
        (_line(bench, peers) for bench in benches),
    )
    return f"{table}\n\n{_LEGEND}\n\n{listed}"


def _line(bench: Bench, peers: Iterable[Variant]) -> tuple[str, ...]:
    base, best = bench.row("float32"), bench.against_best
    return (
        entry(bench.model).title,
        bench.mode,
        str(base.rounds if base else 0),
        milliseconds(base.step_seconds if base else None),
        *(_cell(bench, bench.row(each.name)) for each in peers),
        f"{best:.2f}" if best is not None else "-",
    )


def _cell(bench: Bench, row: BenchRow | None) -> str:
    if row is None or row.step_seconds is None:
        return "failed" if row and row.failure else "-"
    change = change_of(row) if row.method != _IN_FLOAT32 else ""
    remark = (change and f" {change}") + " WRONG" * bench.is_wrong(row)
    if row.speed_up is None:
        return f"{milliseconds(row.step_seconds)} ms{remark}"
    spread = f"({row.speed_up.lowest:.2f}-{row.speed_up.highest:.2f})"
    base = bench.row(FLOAT32)
    rounds = f" [{row.rounds}]" * (base is not None and row.rounds != base.rounds)
    return f"{row.speed_up.median:.2f} {spread}{rounds}{remark}"


def milliseconds(seconds: float | None) -> str:
    """Return seconds as a number of milliseconds, three digits or more."""
    if seconds is None:
        return "-"
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def remarks(benches: Sequence[Bench], *, has_low_units: bool) -> tuple[str, ...]:
    """Return what deserves a sentence: the mean, what is slow, wrong or failed."""
    noise = _NOISE[has_low_units]
    found = []
    if any(bench.against_peers for bench in benches):
        mean = mean_over_peers(benches)
        found.append(
            f"tf-amp is {mean:.2f} times as fast as the better peer of each row "
            "(geometric mean, of rows on which both peers were run)."
        )
    found += [text for name in _FLOORS for text in _floor_remarks(benches, name)]
    found += [
        f"{_name(bench)}: tf-amp takes {bench.against_best:.2f} times as long as the "
        f"best other variant (noise: {noise})."
        for bench in benches
        if (bench.against_best or 0.0) > noise
    ]
    return (*found, *(text for bench in benches for text in _faults(bench)))


def _floor_remarks(benches: Sequence[Bench], name: str) -> Iterator[str]:
    """Say how many rows are slower than float32, and the worst of all rounds."""
    rows = (bench.row(name) for bench in benches)
    found = [row.speed_up for row in rows if row is not None and row.speed_up]
    if found:
        under = sum(each.median < _LEAST_SPEED_UP for each in found)
        worst = min(each.lowest for each in found)
        yield (
            f"{variant(name).title}: {under} of {len(found)} medians under "
            f"{_LEAST_SPEED_UP} times as fast as float32; the lowest of one round is "
            f"{worst:.2f}."
        )


def _faults(bench: Bench) -> Iterator[str]:
    titles = {each.method: each.title for each in VARIANTS}
    for row in bench.rows:
        what = f"{_name(bench)}: {titles[row.method]}"
        if bench.is_wrong(row):
            tolerance = TOLERANCES[bench.mode]
            yield (
                f"{what} is off by {row.error:.2g} relative to float32 (tolerance "
                f"{tolerance:.2g})."
            )
        if row.failure:
            yield f"{what} failed, {row.failure}."
        if row.warning:
            yield f"{what} warned, {row.warning}"


def _name(bench: Bench) -> str:
    return f"{entry(bench.model).title} {bench.mode}"


def markdown_table(titles: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rule = ["---"] * len(titles)
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, rule, *cells))
