"""Write docs/evidence.md with its charts from the runs that are kept."""

from __future__ import annotations

import pathlib
import textwrap
from collections import Counter
from collections.abc import Sequence

import matplotlib
import numpy as np

from benchmarks.report import markdown_table
from evidence import batches
from evidence.families import NAMES, family_of
from evidence.family import Family
from evidence.methods import METHODS, Method
from evidence.records import RAW, ROOT, Wanted, origin_of
from evidence.summary import (
    COMPARISONS,
    LEVEL,
    SEEDS,
    Row,
    corrected,
    is_complete,
    rows_of,
    trials_of,
)

PAGE = ROOT / "docs" / "evidence.md"
_CHARTS = "evidence"
# Of the README, and of an axis.
_COLUMNS, _LABEL = 98, 24
_NONE = "none"
_TITLES = (
    "family",
    "method",
    "steps",
    "untrained",
    "metric",
    "difference to float32",
    "p",
    "corrected",
    "skipped",
    "16-bit ops",
)
_HEAD = f"""# Evidence

Does training in 16 bits come to the same? Small models of six kinds are trained in
float32, under Keras' policy, by TensorFlow's own pass and by tf-amp; all else is the
same. `python -m evidence --all` runs what is missing of it, with a name one family, and
writes this page; `evidence/raw` has each run with its revision, versions and CPU.

This was fixed before the first run, alike for all families and methods:

- *Seeds*: {len(SEEDS)}, which decide weights and batches. No method or family gets more
  because of what its runs came to.
- *Metric*: after the last step, on data that is not learned from. Models
  are smaller and steps fewer than one would use, so that all runs take some 70 minutes
  of a core. Sizes were chosen by float32 with seed 99, which does not count.
- *Test*: paired t-test of the differences to float32, two-sided, a pair being one seed.
  Of {COMPARISONS} comparisons some would have p < {LEVEL} by chance. *corrected*
  is p after Holm's method for all {COMPARISONS}: under {LEVEL}, a difference counts.

This page replaces earlier runs, which had other sizes and unequal numbers of seeds.
There p was smallest with the GAN under TensorFlow's pass (0.04, 3 seeds) and detection
under tf-amp in bfloat16 (0.04 from 5 seeds, 0.06 from 10). None of these would have
passed the correction.

- *untrained*, *metric*: before the first step and after the last one; means over seeds,
  ± standard deviation.
- *difference to float32*: mean over seeds, and its interval of 95% (t, not corrected).
  What lies outside of an interval is what such an experiment speaks against; what lies
  inside, it cannot tell from no difference.
- *skipped*: steps whose gradients overflowed, mean.

Runs went beside other work, so that nothing here is about speed: for that see
`benchmarks/RESULTS.md`, and [batch sizes](#methods-by-batch-sizes) below."""


def write(folder: pathlib.Path = RAW) -> None:
    """Write the page and a chart for each family whose runs are complete."""
    families = [family_of(name) for name in NAMES]
    found = [family for family in families if is_complete(family, folder)]
    rows = [row for family in found for row in rows_of(family, folder=folder)]
    table = [cells(row, corrected(rows)) for row in rows]
    parts = [_HEAD]
    if rows:
        parts += [markdown_table(_TITLES, table), conclusion(rows)]
    if missing := [family.title for family in families if family not in found]:
        parts.append(
            f"Not complete, and so not shown: {', '.join(missing)}. "
            "`python -m evidence --all --jobs 2` runs what is missing."
        )
    for family in found:
        _draw(family, folder, PAGE.parent / _CHARTS / f"{family.name}.png")
        parts.append(_section(family, folder))
    parts += filter(None, [batches.section()])
    PAGE.write_text("\n\n".join(parts) + "\n")


def cells(row: Row, p_values: dict[tuple[str, str], float]) -> tuple[str, ...]:
    """Return the cells of a row; ``p_values`` are corrected."""
    found, key = row.difference, (row.family.name, row.method.name)
    compared = ("-", "-", "-")
    if found is not None:
        interval = f"({found.lowest:+.2g} to {found.highest:+.2g})"
        p_value, after = f"{found.p_value:.3f}", f"{p_values[key]:.2f}"
        compared = (f"{found.mean:+.2g} {interval}", p_value, after)
    return (
        row.family.title,
        row.method.title,
        str(row.steps),
        f"{row.untrained:.3g}",
        f"{row.metric:.4g} ± {row.spread:.2g}",
        *compared,
        f"{row.skipped:.1f}",
        str(row.low_ops),
    )


def conclusion(rows: Sequence[Row]) -> str:
    """Say which methods are worse than float32 beyond what seeds explain."""
    families = len({row.family.name for row in rows})
    return "\n".join(
        f"- {method.title}: worse than float32 in {_worse(rows, method)} of "
        f"{families} families (corrected p < {LEVEL})."
        for method in METHODS[1:]
    )


def caption(folder: pathlib.Path = RAW) -> str:
    """Return what the README says of the page, in lines as they stand there."""
    families = [each for each in map(family_of, NAMES) if is_complete(each, folder)]
    rows = [row for family in families for row in rows_of(family, folder=folder)]
    worse = {method.title: _worse(rows, method) for method in METHODS[1:]}
    found = [f"{title} ({names})" for title, names in worse.items() if names != _NONE]
    count, link = len(families), "(docs/evidence.md)"
    what = f"[{count} small models]{link}"
    if count < len(NAMES):
        what = f"[small models]{link} of {count} kinds ({len(NAMES)} are planned)"
    text = (
        f"We trained {what} with {len(SEEDS)} seeds each. These methods train "
        f"significantly worse than float32 (p < {LEVEL}, corrected for {COMPARISONS} "
        f"comparisons): {'; '.join(found) or f'none of {len(worse)}'}. tf-amp was run "
        "at its level O2, which uses more 16 bits than the default. A difference that "
        "is not significant may still be there."
    )
    if not families:
        text = (
            "We are measuring the quality of [small models](docs/evidence.md) again; "
            "no kind has all of its runs yet."
        )
    return textwrap.fill(text, _COLUMNS, break_on_hyphens=False)


def _worse(rows: Sequence[Row], method: Method) -> str:
    """Name the families that a method is worse in, or none."""
    p_values = corrected(rows)
    found = [
        row.family.title
        for row in rows
        if row.method.name == method.name
        and row.is_lower_quality
        and p_values[row.family.name, method.name] < LEVEL
    ]
    return ", ".join(found) or _NONE


def _section(family: Family, folder: pathlib.Path) -> str:
    better = "higher" if family.is_better_high else "lower"
    return (
        f"## {family.title}\n\n{family.metric[0].upper()}{family.metric[1:]}; {better} "
        f"is better. Data: {family.data}. Runs: {_origins(family, folder)}.\n\n"
        f"![Loss and metric of {family.title}]({_CHARTS}/{family.name}.png)"
    )


def _origins(family: Family, folder: pathlib.Path) -> str:
    """Return how many runs are from which CPU and revision."""
    every = Counter(
        origin_of(Wanted(family, method, seed, family.steps), folder)
        for method in METHODS
        for seed in SEEDS
    )
    return "; ".join(f"{count} on {origin}" for origin, count in every.most_common())


def _draw(family: Family, folder: pathlib.Path, path: pathlib.Path) -> None:
    """Draw loss and metric by steps, as means over seeds."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (loss, metric) = pyplot.subplots(
        1, 2, figsize=(8.0, 3.2), layout="constrained"
    )
    for method in METHODS:
        trials = [*trials_of(family, method, SEEDS, folder).values()]
        losses = np.mean([trial.losses for trial in trials], 0)
        ends = np.linspace(0.0, trials[0].steps, len(losses) + 1)[1:]
        steps, values = np.mean([trial.metrics[1:] for trial in trials], 0).T
        loss.plot(ends, losses, label=method.title, linewidth=1.2)
        metric.plot(steps, values, linewidth=1.2)
    loss.set(xlabel="step", ylabel="loss")
    metric.set(xlabel="step", ylabel=textwrap.fill(family.metric, _LABEL))
    loss.legend(fontsize="x-small")
    for axes in (loss, metric):
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
