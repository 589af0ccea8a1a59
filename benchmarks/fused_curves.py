"""Do fused training steps learn alike? ``python -m benchmarks.fused_curves``.

Three networks learn scikit-learn's handwritten digits for 300 steps, from five seeds
each, in float32: as Keras writes their steps, and with all fusions. What
these change is held against what another seed changes.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from rich.progress import track
from sklearn.datasets import load_digits

import tf_amp
from benchmarks.report import markdown_table
from benchmarks.results import publish

_SEEDS, _STEPS, _BATCH, _LAST = range(5), 300, 64, 50
_TITLES = (
    "network",
    "optimizer",
    "loss",
    "fused",
    "between seeds",
    "by fusing",
    "accuracy",
    "fused",
)
_EXPLANATION = (
    f"*loss*: of the last {_LAST} of {_STEPS} steps, mean over {len(_SEEDS)} seeds. "
    "*between seeds*, *by fusing*: root mean square of what the whole curve, averaged "
    f"over windows of {_LAST} steps, differs by between two seeds, and by fusing with "
    "the same seed. *accuracy*: on digits that were not learned from, in percent."
)
_BEFORE, _AFTER = "off", "on"


def _dense() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [layers.Flatten(), layers.Dense(1024, "gelu"), layers.Dense(10)]
    )


def _convolutional() -> keras.Model:
    layers = keras.layers
    # The moving averages are to have settled after 300 steps.
    blocks = [
        [layers.Conv2D(64, 3, padding="same"), layers.BatchNormalization(momentum=0.9)]
        for _ in range(2)
    ]
    head = [layers.ReLU(), layers.GlobalAveragePooling2D(), layers.Dense(10)]
    return keras.Sequential([*blocks[0], layers.ReLU(), *blocks[1], *head])


def _recurrent() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [layers.Reshape((8, 8)), layers.LSTM(128), layers.Dense(10)]
    )


_NETWORKS = {
    "dense": (_dense, "adam", lambda: keras.optimizers.Adam(1e-3)),
    "convolutional": (
        _convolutional,
        "momentum",
        lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    ),
    "recurrent": (_recurrent, "adamw", lambda: keras.optimizers.AdamW(3e-3)),
}


def main() -> None:
    """Train, print, and write the section of RESULTS.md on it."""
    rows = [_row(name) for name in track(_NETWORKS, "training")]
    table = "\n\n".join((markdown_table(_TITLES, [c for c, _ in rows]), _EXPLANATION))
    samples = {cells[0]: curves for cells, curves in rows}
    publish("fused_curves", table, samples, rounds=len(_SEEDS))


def _row(name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    plain, fused = (
        [_trained(name, seed, fuse) for seed in _SEEDS] for fuse in (_BEFORE, _AFTER)
    )
    curves, others = (
        np.array([losses for losses, _ in runs]) for runs in (plain, fused)
    )
    windows, fused_windows = (_windows(each) for each in (curves, others))
    between = [windows[a] - windows[b] for a in _SEEDS for b in _SEEDS if a < b]
    cells = (
        name,
        _NETWORKS[name][1],
        f"{curves[:, -_LAST:].mean():.4f}",
        f"{others[:, -_LAST:].mean():.4f}",
        f"{_root_mean_square(between):.4f}",
        f"{_root_mean_square(windows - fused_windows):.4f}",
        *(f"{100 * np.mean([a for _, a in runs]):.1f}" for runs in (plain, fused)),
    )
    return cells, {"loss of each step, accuracy": {"plain": plain, "fused": fused}}


def _trained(name: str, seed: int, fuse: str) -> tuple[list[float], float]:
    """Return the loss of each step, and the accuracy on other digits."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    learned = len(images) - len(images) // 4
    tf_amp.enable(device_profile="cpu-generic", tune="off", fuse=fuse)
    keras.utils.set_random_seed(seed)
    build, _, optimizer = _NETWORKS[name]
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(), loss, metrics=["accuracy"], jit_compile=False)
    random = np.random.default_rng(seed)
    losses = []
    for _ in range(_STEPS):
        drawn = random.integers(0, learned, _BATCH)
        result = model.train_on_batch(images[drawn], labels[drawn], return_dict=True)
        model.reset_metrics()
        losses.append(float(result["loss"]))
    tf_amp.disable()
    accuracy = model.evaluate(images[learned:], labels[learned:], verbose=0)[1]
    return losses, float(accuracy)


def _windows(curves: np.ndarray) -> np.ndarray:
    return curves.reshape(len(curves), -1, _LAST).mean(axis=-1)


def _root_mean_square(values: Sequence[np.ndarray] | np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


if __name__ == "__main__":
    main()
