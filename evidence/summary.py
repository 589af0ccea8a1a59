"""From runs to rows: the metric of each method, held against float32's by seeds."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from statistics import fmean, stdev

import scipy.stats

from evidence.families import NAMES
from evidence.family import Family
from evidence.methods import METHODS, REFERENCE, Method, method_of
from evidence.records import RAW, Wanted, trial_of
from evidence.trial import Trial

# Fixed before the first run: seeds of every method and family, what is compared in all,
# and the level that no difference among all comparisons passes by chance but so often.
SEEDS = range(8)
COMPARISONS = len(NAMES) * (len(METHODS) - 1)
LEVEL = 0.05
_FEWEST = 2


@dataclasses.dataclass(frozen=True)
class Difference:
    """What a method's metric is over float32's of the same seeds.

    Attributes:
      mean: over seeds.
      lowest: of the interval that covers the true mean in 95 of 100 such experiments.
      highest: of it.
      p_value: of a paired t-test; 1.0 where there is no difference at all.
    """

    mean: float
    lowest: float
    highest: float
    p_value: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One method of a family.

    Attributes:
      untrained: the metric before the first step, mean over seeds.
      metric: after the last step, mean over seeds.
      spread: standard deviation over seeds; 0.0 of one seed.
      difference: to float32; None of float32 itself and where there are too few seeds.
    """

    family: Family
    method: Method
    steps: int
    seeds: int
    untrained: float
    metric: float
    spread: float
    difference: Difference | None
    skipped: float
    low_ops: int

    @property
    def is_lower_quality(self) -> bool:
        """Whether the mean is on the worse side of float32's, by whatever little."""
        sign = 1.0 if self.family.is_better_high else -1.0
        return self.difference is not None and sign * self.difference.mean < 0.0


def trials_of(
    family: Family,
    method: Method,
    seeds: Sequence[int],
    folder: pathlib.Path = RAW,
    steps: int | None = None,
) -> dict[int, Trial]:
    """Return the runs that are kept, by seed."""
    count = steps or family.steps
    found = {
        seed: trial_of(Wanted(family, method, seed, count), folder) for seed in seeds
    }
    return {seed: trial for seed, trial in found.items() if trial is not None}


def is_complete(family: Family, folder: pathlib.Path = RAW) -> bool:
    """Return whether every method has run with every seed."""
    return all(
        len(trials_of(family, method, SEEDS, folder)) == len(SEEDS)
        for method in METHODS
    )


def rows_of(
    family: Family,
    seeds: Sequence[int] = SEEDS,
    folder: pathlib.Path = RAW,
    steps: int | None = None,
) -> list[Row]:
    """Return a row for each method that has run with a seed that float32 has, too."""
    plain = trials_of(family, method_of(REFERENCE), seeds, folder, steps)
    rows = []
    for method in METHODS:
        trials = trials_of(family, method, seeds, folder, steps)
        common = sorted(trials.keys() & plain.keys())
        if common:
            pairs = [(trials[seed], plain[seed]) for seed in common]
            rows.append(_row(family, method, pairs))
    return rows


def _row(family: Family, method: Method, pairs: Sequence[tuple[Trial, Trial]]) -> Row:
    metrics = [trial.metrics[-1][1] for trial, _ in pairs]
    differences = [
        mine - plain.metrics[-1][1]
        for mine, (_, plain) in zip(metrics, pairs, strict=True)
    ]
    return Row(
        family=family,
        method=method,
        steps=pairs[0][0].steps,
        seeds=len(pairs),
        untrained=fmean(trial.metrics[0][1] for trial, _ in pairs),
        metric=fmean(metrics),
        spread=stdev(metrics) if len(metrics) >= _FEWEST else 0.0,
        difference=None if method.name == REFERENCE else _difference(differences),
        skipped=fmean(trial.skipped for trial, _ in pairs),
        low_ops=pairs[0][0].low_ops,
    )


def _difference(differences: Sequence[float]) -> Difference | None:
    if len(differences) < _FEWEST:
        return None
    mean = fmean(differences)
    if stdev(differences) == 0.0:
        return Difference(mean, mean, mean, p_value=0.0 if mean else 1.0)
    test = scipy.stats.ttest_1samp(differences, 0.0)
    lowest, highest = test.confidence_interval(1.0 - LEVEL)
    return Difference(mean, float(lowest), float(highest), float(test.pvalue))


def corrected(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return p corrected after Holm, by names of family and method.

    All comparisons that were fixed beforehand count, also those that have not run.
    """
    tested = {
        (row.family.name, row.method.name): row.difference.p_value
        for row in rows
        if row.difference is not None
    }
    found: dict[tuple[str, str], float] = {}
    least = 0.0
    for place, key in enumerate(sorted(tested, key=tested.__getitem__)):
        least = min(1.0, max(least, (COMPARISONS - place) * tested[key]))
        found[key] = least
    return found
