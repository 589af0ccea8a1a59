"""Train a detector in float16 with and without loss scaling: benchmarks.detector.

A detector in the style of SSD learns real digits on canvases, in float32, in float16
without loss scaling, and in float16 with a constant and with the automatic scale, from
several seeds each. Writes docs/detector.png and prints a table.
"""

import argparse
import contextlib
import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import matplotlib
import numpy as np
import tensorflow as tf

import tf_amp
from benchmarks.announcing import announcing
from benchmarks.detector_network import LOSSES_IN_MEAN, build, multibox_loss, quality
from benchmarks.detector_scenes import Scenes, make_scenes
from benchmarks.report import markdown_table
from benchmarks.results import publish
from tf_amp.config.loss_scales.words import loss_scale_from_words

_CHART = Path(__file__).resolve().parent.parent / "docs" / "detector.png"
# Title, loss scale in float16 or None for float32, and the look of the curve.
_SETTINGS = (
    ("float32", None, "k-"),
    ("float16, no scaling", "none", "r-"),
    ("float16, constant scale", "131072", "b--"),
    ("float16, automatic scale", "dynamic:growth_interval=100", "g:"),
)
_SCENES, _HELD_OUT_SCENES = 1000, 200
_BATCH = 16
_LEARNING_RATE, _DECAY_AFTER = 2e-3, 0.7
# The gradients are tiny, and Adam's usual epsilon would damp them.
_EPSILON = 1e-16
_SMOOTHING_STEPS = 25
_TITLES = ("setting", "seed", "last loss", "precision and recall", "scale", "skipped")


@dataclass(frozen=True)
class Training:
    """One run: the loss of each step in units of one image, and what it came to."""

    losses: np.ndarray
    quality: float
    scale: float
    skipped: int

    def samples(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        return asdict(self) | {"losses": self.losses.tolist()}

    @property
    def last_loss(self) -> float:
        """Mean loss of the last steps."""
        return float(self.losses[-2 * _SMOOTHING_STEPS :].mean())


def main() -> None:
    """Train, print the table, draw the chart, and write a section of RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detector")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--chart", type=Path, default=_CHART)
    options = parser.parse_args()
    os.environ["TF_AMP_TUNE"] = "off"
    held_out = make_scenes(_HELD_OUT_SCENES, seed=999, held_out=True)
    trainings: dict[str, list[Training]] = {title: [] for title, _, _ in _SETTINGS}
    with announcing(options.seeds * len(_SETTINGS)) as announce:
        for seed in range(options.seeds):
            scenes = make_scenes(_SCENES, seed)
            for title, words, _ in _SETTINGS:
                announce(f"{title}, seed {seed}")
                run = train(words, scenes, held_out, seed=seed, steps=options.steps)
                trainings[title].append(run)
    table = _table(trainings)
    draw(trainings, options.chart)
    publish(
        "detector",
        table,
        {title: [run.samples() for run in runs] for title, runs in trainings.items()},
        rounds=options.seeds,
        is_whole=options.chart == _CHART,
    )


def train(
    words: str | None, scenes: Scenes, held_out: Scenes, *, seed: int, steps: int
) -> Training:
    """Train from scratch; ``words`` is the loss scale, None for float32."""
    keras.utils.set_random_seed(seed)
    model = build()
    decayed = keras.optimizers.schedules.PiecewiseConstantDecay(
        [int(_DECAY_AFTER * steps)], [_LEARNING_RATE, _LEARNING_RATE / 5]
    )
    optimizer = keras.optimizers.Adam(decayed, epsilon=_EPSILON)
    optimizer.build(model.trainable_variables)
    loss_scale = None if words is None else _anew(words)
    with _scope(loss_scale):

        @tf.function(jit_compile=False)
        def step(
            images: tf.Tensor, classes: tf.Tensor, offsets: tf.Tensor
        ) -> tf.Tensor:
            with tf.GradientTape() as tape:
                answers = model(images, training=True)
                loss = multibox_loss(answers, classes, offsets)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            return loss

        losses = [float(step(*batch)) for batch in _batches(scenes, seed, steps)]
    answers = np.asarray(model(held_out.images, training=False))
    state = tf_amp.loss_scale_state(loss_scale) if loss_scale is not None else None
    return Training(
        losses=np.array(losses) * LOSSES_IN_MEAN / _BATCH,
        quality=quality(answers, held_out),
        scale=state.scale if state else 1.0,
        skipped=state.skipped_steps if state else 0,
    )


def draw(trainings: Mapping[str, Sequence[Training]], path: Path) -> None:
    """Write the curves of all runs, smoothed, as PNG."""
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(6.4, 4.0), layout="constrained")
    kernel = np.full(_SMOOTHING_STEPS, 1 / _SMOOTHING_STEPS)
    for title, _, look in _SETTINGS:
        reached = np.mean([run.quality for run in trainings[title]])
        for number, run in enumerate(trainings[title]):
            label = f"{title}: {reached:.2f}" if number == 0 else None
            smooth = np.convolve(run.losses, kernel, mode="valid")
            axes.plot(smooth, look, label=label, linewidth=1.4, alpha=0.7)
    seeds = len(trainings[_SETTINGS[0][0]])
    axes.set(
        xlabel="step",
        ylabel="multi-box loss per image",
        title=f"A detector of digits, {seeds} seeds each",
        yscale="log",
    )
    axes.yaxis.set_major_formatter(ticker.ScalarFormatter())
    axes.yaxis.set_minor_formatter(ticker.ScalarFormatter())
    axes.legend(title="mean of precision and recall", fontsize="small")
    axes.grid(alpha=0.3, which="both")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _anew(words: str) -> tf_amp.LossScale:
    """Return a loss scale that shares its state with no other run."""
    return copy.copy(loss_scale_from_words(words))


def _scope(
    loss_scale: tf_amp.LossScale | None,
) -> contextlib.AbstractContextManager[object]:
    if loss_scale is None:
        return contextlib.nullcontext()
    return tf_amp.mixed_precision_scope(
        "float16", loss_scale=loss_scale, opt_level="O2"
    )


def _batches(scenes: Scenes, seed: int, steps: int) -> list[tuple[tf.Tensor, ...]]:
    rng = np.random.default_rng(seed)
    chosen = [rng.integers(len(scenes.images), size=_BATCH) for _ in range(steps)]
    parts = (scenes.images, scenes.classes, scenes.offsets)
    return [tuple(tf.constant(part[rows]) for part in parts) for rows in chosen]


def _table(trainings: Mapping[str, Sequence[Training]]) -> str:
    cells = [
        (
            title,
            str(seed),
            f"{run.last_loss:.2f}",
            f"{run.quality:.3f}",
            f"{run.scale:g}",
            str(run.skipped),
        )
        for title, runs in trainings.items()
        for seed, run in enumerate(runs)
    ]
    return markdown_table(_TITLES, cells)


if __name__ == "__main__":
    main()
