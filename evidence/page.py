"""Write docs/evidence.md with its charts from the runs that are kept."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Sequence

import matplotlib
import numpy as np

from benchmarks.report import markdown_table
from evidence import batches
from evidence.families import NAMES, family_of
from evidence.family import Family
from evidence.methods import METHODS, Method
from evidence.records import RAW, ROOT
from evidence.summary import LEVEL, Row, rows_of, trials_of

PAGE = ROOT / "docs" / "evidence.md"
_CHARTS = "evidence"
# Of the README, and of an axis.
_COLUMNS, _LABEL = 98, 24
# Those that may have been run.
_SEEDS = range(100)
_TITLES = (
    "family",
    "method",
    "steps",
    "seeds",
    "metric",
    "difference to float32",
    "p",
    "skipped",
    "16-bit ops",
    "times float32's speed",
)
_HEAD = """# Evidence

Does training in 16 bits come to the same? Six kinds of models are trained from several
seeds in float32, under Keras' policy, by TensorFlow's own pass and by tf-amp; all else
is the same. `python -m evidence --all` runs what is missing of it, with a name one
family, and writes this page; `evidence/raw` has each run, its revision and versions.

- *metric*: after the last step, on data that is not learned from; mean over seeds ±
  standard deviation.
- *difference to float32*: after as many steps from the same seed, mean. *p*: of a
  paired t-test over seeds; -: one seed, or no difference.
- *seeds*: three, and five where a run takes about a minute. Of detection, five told
  p = 0.04 for tf-amp in bfloat16; five more were run of it, Keras' policy and float32.
- *skipped*: steps whose gradients overflowed, mean. float16 is emulated on a CPU, so it
  trains half of the steps.
- *times float32's speed*: of training without evaluations. Runs are not interleaved,
  and two at a time had a core each, so that only large differences tell anything; for
  speeds see `benchmarks/RESULTS.md`.

`benchmarks/RESULTS.md` has what was measured beside quality: gradients of the first
step against float32's, the largest batch that trains in a given memory, block-sparse
products, and what is predicted for GPUs."""


def write(seeds: Sequence[int], folder: pathlib.Path = RAW) -> None:
    """Write the page and a chart for each family that has runs."""
    families = [family_of(name) for name in NAMES]
    rows = {family.name: rows_of(family, seeds, folder) for family in families}
    found = [family for family in families if rows[family.name]]
    every = [row for family in found for row in rows[family.name]]
    parts = [_HEAD, markdown_table(_TITLES, map(cells, every)), conclusion(every)]
    for family in found:
        _draw(family, seeds, folder, PAGE.parent / _CHARTS / f"{family.name}.png")
        parts.append(_section(family))
    parts += filter(None, [batches.section()])
    PAGE.write_text("\n\n".join(parts) + "\n")


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row."""
    return (
        row.family.title,
        row.method.title,
        str(row.steps),
        str(row.seeds),
        f"{row.metric:.4g} ± {row.spread:.2g}",
        f"{row.difference:+.2g}",
        "-" if row.p_value is None else f"{row.p_value:.2f}",
        f"{row.skipped:.1f}",
        str(row.low_ops),
        f"{row.float32_seconds / row.seconds:.2f}",
    )


def conclusion(rows: Sequence[Row]) -> str:
    """Say which methods are worse than float32 beyond what seeds explain."""
    lines = []
    for method in METHODS[1:]:
        count = sum(row.method.name == method.name for row in rows)
        lines.append(
            f"- {method.title}: worse than float32 at p < {LEVEL} in "
            f"{_worse(rows, method)} of the {count} families."
        )
    tested = sum(row.p_value is not None for row in rows)
    if tested:
        lines.append(
            f"- Of {tested} tests {tested * LEVEL / 2:.1f} would find something worse "
            "by chance, were all methods alike."
        )
    return "\n".join(lines)


def caption(folder: pathlib.Path = RAW) -> str:
    """Return what the README says of the page, in lines as they stand there."""
    rows = [row for name in NAMES for row in rows_of(family_of(name), _SEEDS, folder)]
    kinds = len({row.family.name for row in rows})
    parts = [
        f"{method.title}, in {_worse(rows, method)}" for method in reversed(METHODS[1:])
    ]
    text = (
        f"Quality of [{kinds} kinds of models](docs/evidence.md), trained from several "
        f"seeds, against float32. Worse at p < {LEVEL}: {'; '.join(parts)}."
    )
    return textwrap.fill(text, _COLUMNS, break_on_hyphens=False)


def _worse(rows: Sequence[Row], method: Method) -> str:
    """Name the families that a method is worse in, or none."""
    mine = (row for row in rows if row.method.name == method.name)
    return ", ".join(row.family.title for row in mine if row.is_worse) or "none"


def _section(family: Family) -> str:
    better = "higher" if family.is_better_high else "lower"
    return (
        f"## {family.title}\n\n{family.metric[0].upper()}{family.metric[1:]}; {better} "
        f"is better. Data: {family.data}.\n\n"
        f"![Loss and metric of {family.title}]({_CHARTS}/{family.name}.png)"
    )


def _draw(
    family: Family, seeds: Sequence[int], folder: pathlib.Path, path: pathlib.Path
) -> None:
    """Draw loss by steps, and the metric by steps and by seconds, as means of seeds."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_step, metric, by_time) = pyplot.subplots(
        1, 3, figsize=(10.0, 3.2), layout="constrained"
    )
    for method in METHODS:
        trials = [*trials_of(family, method, seeds, folder).values()]
        if not trials:
            continue
        losses = np.mean([trial.losses for trial in trials], 0)
        ends = np.linspace(0.0, trials[0].steps, len(losses) + 1)[1:]
        steps, seconds, values = np.mean([trial.metrics for trial in trials], 0).T
        by_step.plot(ends, losses, label=method.title, linewidth=1.2)
        metric.plot(steps, values, linewidth=1.2)
        by_time.plot(seconds, values, linewidth=1.2)
    by_step.set(xlabel="step", ylabel="loss")
    named = textwrap.fill(family.metric, _LABEL)
    metric.set(xlabel="step", ylabel=named)
    by_time.set(xlabel="seconds of training", ylabel=named)
    by_step.legend(fontsize="x-small")
    for axes in (by_step, metric, by_time):
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
