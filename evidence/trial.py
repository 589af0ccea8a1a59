"""One training run of one method, in this process: ``python -m evidence.trial``.

Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math

import keras
import numpy as np

import tf_amp
from benchmarks.executed import count_executed_ops
from benchmarks.variants import switch_on
from evidence.families import family_of
from evidence.methods import method_of

# What is kept of a run: so many means of losses, and values of the metric while it
# learns; of one too short for them, only the last value.
_WINDOWS, _METRICS = 50, 5


@dataclasses.dataclass(frozen=True)
class Trial:
    """What a training run came to.

    Attributes:
      steps: how many it took.
      losses: means over windows of steps of equal length.
      metrics: steps done, and the metric; the first before any step.
      skipped: steps that were not taken, since gradients overflowed.
      low_ops: operations of the executed step that compute in 16 bits.
    """

    steps: int
    losses: tuple[float, ...]
    metrics: tuple[tuple[int, float], ...]
    skipped: int
    low_ops: int


def run(family_name: str, method_name: str, seed: int, steps: int) -> Trial:
    """Train once."""
    switch_on(method_of(method_name).switched)
    keras.utils.set_random_seed(seed)
    task = family_of(family_name).make(seed)
    metrics = [(0, task.metric())]
    losses: list[float] = []
    low_ops = count_executed_ops(lambda: losses.append(float(task.step()))).low
    parts = _METRICS if steps >= _METRICS else 1
    ends = {math.ceil(steps * part / parts) for part in range(1, parts + 1)}
    while len(losses) < steps:
        losses.append(float(task.step()))
        if len(losses) in ends:
            metrics.append((len(losses), task.metric()))
    return Trial(
        steps=steps,
        losses=tuple(
            float(f"{window.mean():.5g}")
            for window in np.array_split(losses, min(_WINDOWS, steps))
        ),
        metrics=tuple((step, float(f"{value:.6g}")) for step, value in metrics),
        skipped=tf_amp.loss_scale_state().skipped_steps,
        low_ops=low_ops,
    )


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family")
    parser.add_argument("method")
    parser.add_argument("seed", type=int)
    parser.add_argument("steps", type=int)
    options = parser.parse_args()
    trial = run(options.family, options.method, options.seed, options.steps)
    print(json.dumps(dataclasses.asdict(trial)))


if __name__ == "__main__":
    main()
