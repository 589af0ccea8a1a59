"""From runs to rows: the metric of each method, held against float32's by seeds."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from statistics import fmean, stdev

import scipy.stats

from evidence.family import Family
from evidence.methods import METHODS, REFERENCE, Method, method_of
from evidence.records import RAW, Wanted, trial_of
from evidence.trial import Trial

# Level of the t-test at which a difference is more than the spread of seeds.
LEVEL = 0.05
_FEWEST = 2


@dataclasses.dataclass(frozen=True)
class Row:
    """One method of a family.

    Attributes:
      metric: after the last step, mean over seeds.
      spread: standard deviation over seeds; 0.0 of one seed.
      difference: to float32 after as many steps with the same seeds, mean.
      p_value: of a paired t-test of that; None where there are too few seeds.
      seconds: of training, the mean.
      float32_seconds: of float32 for as many steps.
    """

    family: Family
    method: Method
    steps: int
    seeds: int
    metric: float
    spread: float
    difference: float
    p_value: float | None
    skipped: float
    low_ops: int
    seconds: float
    float32_seconds: float

    @property
    def is_worse(self) -> bool:
        """Whether it is worse than float32, beyond what seeds explain."""
        sign = 1.0 if self.family.is_better_high else -1.0
        is_significant = self.p_value is not None and self.p_value < LEVEL
        return is_significant and sign * self.difference < 0.0


def steps_of(family: Family, method: Method, steps: int | None = None) -> int:
    """Return how many steps a method trains a family."""
    return max(1, round((steps or family.steps) * method.share))


def trials_of(
    family: Family,
    method: Method,
    seeds: Sequence[int],
    folder: pathlib.Path = RAW,
    steps: int | None = None,
) -> dict[int, Trial]:
    """Return the runs that are kept, by seed."""
    count = steps_of(family, method, steps)
    found = {
        seed: trial_of(Wanted(family, method, seed, count), folder) for seed in seeds
    }
    return {seed: trial for seed, trial in found.items() if trial is not None}


def rows_of(
    family: Family,
    seeds: Sequence[int],
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
    ends = [(trial.metrics[-1], _at(plain, trial.steps)) for trial, plain in pairs]
    metrics = [mine[2] for mine, _ in ends]
    differences = [mine[2] - other[2] for mine, other in ends]
    return Row(
        family=family,
        method=method,
        steps=pairs[0][0].steps,
        seeds=len(pairs),
        metric=fmean(metrics),
        spread=stdev(metrics) if len(metrics) >= _FEWEST else 0.0,
        difference=fmean(differences),
        p_value=_p_value(differences),
        skipped=fmean(trial.skipped for trial, _ in pairs),
        low_ops=pairs[0][0].low_ops,
        seconds=fmean(mine[1] for mine, _ in ends),
        float32_seconds=fmean(other[1] for _, other in ends),
    )


def _at(trial: Trial, step: int) -> tuple[int, float, float]:
    """Return what a run was worth after so many steps, or shortly after."""
    return next((each for each in trial.metrics if each[0] >= step), trial.metrics[-1])


def _p_value(differences: Sequence[float]) -> float | None:
    if len(differences) < _FEWEST or not any(differences):
        return None
    if stdev(differences) == 0.0:
        return 0.0
    return float(scipy.stats.ttest_1samp(differences, 0.0).pvalue)
