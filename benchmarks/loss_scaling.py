"""What loss scaling adds to a step: python -m benchmarks.loss_scaling.

One process runs the same bfloat16 training step without scaling, with a constant and
with a dynamic loss scale, in turns of a few milliseconds, so that all of them meet the
same noise. bfloat16 needs no scaling; it is what is fast on a CPU.
"""

import argparse
import gc
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from rich.progress import track

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import tf_amp
from benchmarks.catalog import entry
from benchmarks.executed import count_step_nodes
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.steps import Step, build_model, step_of

_SCALES = {"none": "none", "again": "none", "constant": "1024", "dynamic": "dynamic"}
# The batch is that of the larger MLP among the models.
_UNITS, _LAYERS, _BATCH = 448, 50, 256
_BLOCK_SECONDS = 0.01
_TITLES = (
    "model",
    "loss scale",
    "gradients",
    "step ms",
    "times none",
    "quartiles",
    "nodes added",
    "of 40 + 6 per gradient",
)
_EXPLANATION = (
    "*times none*: median of the ratios to a block of steps without scaling at nearly "
    "the same time, and its quartiles; *again* is without scaling once more, and shows "
    "the noise. *nodes added*: to the graph that TensorFlow executes, with the branch "
    "around the optimizer's updates; less than none where a learning rate is read once "
    "in that branch instead of once for every variable."
)


@dataclass(frozen=True)
class Case:
    """A step with its loss scale.

    ``nodes`` are those of the executed graph; ``gradients`` how many are computed.
    """

    scale: str
    step: Step
    nodes: int
    gradients: int


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on loss scaling."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loss_scaling")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--models", type=lambda text: text.split(","), default=None)
    options = parser.parse_args()
    os.environ["TF_AMP_TUNE"] = "off"
    names = options.models or list(_MODELS)
    measured = {name: _measured(name, options.rounds) for name in names}
    cells = [row for rows, _ in measured.values() for row in rows]
    publish(
        "loss_scaling",
        f"{markdown_table(_TITLES, cells)}\n\n{_EXPLANATION}",
        {name: times for name, (_, times) in measured.items()},
        rounds=options.rounds,
        is_whole=options.models is None,
    )


def tiny_step() -> tuple[Step, int]:
    """Return the step of the tiny MLP, and how many gradients it computes."""
    chosen = entry("tiny_mlp")
    model = build_model(chosen)
    return step_of(model, chosen, "train"), len(model.trainable_variables)


def wide_step() -> tuple[Step, int]:
    """Return the step of a model with 10 million weights in 100 variables."""
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(_UNITS, "relu") for _ in range(_LAYERS)]
    model = keras.Sequential([keras.Input((_UNITS,)), *hidden])
    model.compile(keras.optimizers.Adam(1e-3), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    x = tf.random.normal((_BATCH, _UNITS))

    def train(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return model.train_step((x, y))["loss"]

    step = Step(tf.function(train, jit_compile=False), (x, x))
    return step, len(model.trainable_variables)


_MODELS = {
    "tiny_mlp": ("tiny MLP", tiny_step),
    "wide": ("10 million weights", wide_step),
}


def _measured(
    name: str, rounds: int
) -> tuple[list[tuple[str, ...]], dict[str, list[float]]]:
    """Return the rows of a model, and seconds per step by scale, round by round."""
    title, build = _MODELS[name]
    cases = [_case(scale, build) for scale in _SCALES]
    times = _measure(cases, rounds, title)
    base = cases[0]
    none = times["none"]
    rows = [_row(title, case, base, times[case.scale], none) for case in cases[1:]]
    return rows, times


def _case(scale: str, build: Callable[[], tuple[Step, int]]) -> Case:
    with tf_amp.mixed_precision_scope("bfloat16", loss_scale=_SCALES[scale]):
        step, gradients = build()
        step.function.get_concrete_function(*step.arguments)
        nodes = count_step_nodes(step)
    return Case(scale, step, nodes, gradients)


def _measure(cases: Sequence[Case], rounds: int, title: str) -> dict[str, list[float]]:
    """Return seconds per step, one figure per round."""
    for case in cases:
        _seconds(case.step, 20)
    steps = max(1, round(_BLOCK_SECONDS / _seconds(cases[0].step, 20)))
    times: dict[str, list[float]] = {case.scale: [] for case in cases}
    gc.disable()
    shuffled = random.Random(rounds)
    for _ in track(range(rounds), description=title):
        # In any order: what follows itself more often than others finds warm caches.
        for case in shuffled.sample(cases, len(cases)):
            case.step()
            times[case.scale].append(_seconds(case.step, steps))
    gc.enable()
    return times


def _seconds(step: Step, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    tf.test.experimental.sync_devices()
    return (time.perf_counter() - start) / count


def _row(
    title: str, case: Case, base: Case, times: list[float], none: list[float]
) -> tuple[str, ...]:
    ratios = [one / other for one, other in zip(times, none, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    added = case.nodes - base.nodes
    return (
        title,
        case.scale,
        str(case.gradients),
        f"{1e3 * median(times):.3f}",
        f"{middle:.3f}",
        f"{low:.3f}-{high:.3f}",
        str(added),
        f"{added / (40 + 6 * case.gradients):.0%}",
    )


if __name__ == "__main__":
    main()
