"""What a measurement comes to: is a method worth it for this program?

One sentence for each batch size says the same as the verdicts of the table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tf_amp.report.counts import counted
from tf_amp.tools.bench.job import AGAIN, FLOAT32, BenchJob, is_ours
from tf_amp.tools.bench.record import (
    FASTER,
    FEWEST_ROUNDS,
    SAME_GRAPH,
    SLOWER,
    TOO_FEW_ROUNDS,
    BenchRecord,
    BenchRow,
    SpeedUp,
)


def answers(record: BenchRecord) -> Iterator[str]:
    """Yield a sentence for each batch size at which a method was compared."""
    for batch, of_batch in itertools.groupby(record.summary, lambda row: row.batch):
        rows = list(of_batch)
        methods = [row for row in rows if row.method not in (FLOAT32, AGAIN)]
        noise = next((r.speed_up for r in rows if r.method == AGAIN), None)
        compared = [row for row in methods if row.speed_up is not None]
        at = "" if batch is None else f"At batch size {batch}: "
        if not compared:
            failed = [row.method for row in methods if row.failure]
            if failed:
                yield f"{at}{', '.join(failed)} failed, so that there is no answer."
            continue
        alone = all(row.verdict != FASTER for row in compared)
        is_told = alone and any(row.compared for row in compared)
        more = " Its own steps, in turn within one process, are above." * is_told
        yield f"{at}{_sentence(record.job, compared, noise)}{more}"


def _sentence(job: BenchJob, rows: Sequence[BenchRow], again: SpeedUp | None) -> str:
    faster = [row for row in rows if row.verdict == FASTER]
    if faster:
        best = max(faster, key=_median)
        # One whose rounds disagree may have the larger median.
        is_fastest = len(rows) > 1 and _median(best) == max(map(_median, rows))
        return (
            f"{best.method} makes the steps of {job.target.title} {_ratio(best)}"
            f"{_means(best)}{', the fastest of all methods' * is_fastest}."
        )
    if again is None or all(row.verdict == TOO_FEW_ROUNDS for row in rows):
        return (
            f"Too few rounds to tell a gain from noise: {_listed(rows)}; --rounds "
            f"{FEWEST_ROUNDS} is enough."
        )
    if len(rows) > 1:
        return f"No method is faster beyond the noise of {again.noise}%."
    (row,) = rows
    if row.verdict == SLOWER:
        return f"{row.method} makes the steps of {job.target.title} {_ratio(row)}."
    if row.verdict == SAME_GRAPH:
        return (
            f"{row.method} changes nothing in {job.target.title}: the graph of float32 "
            f"ran, and {_ratio(row)} is noise."
        )
    if row.speed_up is not None and row.speed_up.difference > again.noise:
        return (
            f"No difference is certain: {_ratio(row)}, so that rounds disagree; more "
            "--rounds may decide."
        )
    return (
        f"No difference was measured: {_ratio(row)} is within the noise of "
        f"{again.noise}%."
    )


def _listed(rows: Sequence[BenchRow]) -> str:
    rounds = counted(max(row.rounds for row in rows), "round")
    said = ", ".join(f"{row.method} {_ratio(row)}" for row in rows)
    return f"{said}, in {rounds}"


def _ratio(row: BenchRow) -> str:
    ratio = row.speed_up
    if ratio is None:
        return ""
    bounds = f"{ratio.lowest:.2f} to {ratio.highest:.2f}"
    return f"{ratio.median:.2f} times as fast ({bounds})"


def _means(row: BenchRow) -> str:
    """Say what makes a method faster where that is not 16 bits."""
    if row.float32_ops is None:
        return ""
    how = "by fusions alone" if is_ours(row.method) else "with a changed graph"
    return f", in float32, {how}"


def _median(row: BenchRow) -> float:
    return row.speed_up.median if row.speed_up else 0.0
