"""Gradients of the first step against float32's: ``python -m benchmarks.gradients``.

Each method computes the gradients of every model once, in a process of its own, from
the same weights and inputs and without dropout, whose draws depend on the type. Beside
them stands what is lost at least: float32 with weights and inputs rounded to bfloat16.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from benchmarks.announcing import announcing
from benchmarks.catalog import MODELS, Variant, entry, variant
from benchmarks.processes import worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.steps import build_model, sample_of
from benchmarks.variants import switch_on
from tf_amp.tools.bench.job import FLOAT32

_FLOOR = Variant("floor", "rounded once", FLOAT32)
# The same plans on every machine.
_OURS = Variant("ours", "tf-amp", "tf-amp:TUNE=off+DEVICE_PROFILE=cpu-avx512-bf16")
_METHODS = (
    variant("float32"),
    variant("again"),
    _FLOOR,
    variant("keras"),
    variant("builtin"),
    _OURS,
)
_COMPARED = _METHODS[1:]
_PEERS = ("keras", "builtin")
# Variables whose gradient is a smaller share of the largest one are rounding alone.
_LEAST_SHARE = 1e-4
_TITLES = ("model", "figure", *(method.title for method in _COMPARED))
_EXPLANATION = (
    "Against the gradients of float32: *error*, norm of the difference over theirs, "
    "all variables together; *cosine* of the angle between them; *worst variable*, the "
    "lowest cosine of one variable's gradients. *A/A*: float32 again. *rounded once*: "
    "float32 with weights and inputs rounded to bfloat16. Plans of tf-amp are those of "
    "a CPU with 16-bit units."
)

Gradients = Mapping[str, np.ndarray]
# Error, cosine, and the lowest cosine of one variable.
Figures = tuple[float, float, float]


def main() -> None:
    """Compute, print, and write the section of RESULTS.md on gradients."""
    names = [model.name for model in MODELS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gradients")
    parser.add_argument("--models", type=lambda text: text.split(","), default=names)
    parser.add_argument("--worker", nargs=3, metavar=("MODEL", "METHOD", "FILE"))
    options = parser.parse_args()
    if options.worker:
        name, method, file = options.worker
        np.savez(file, **gradients_of(name, _method(method)))
        return
    figures: dict[str, dict[str, Figures]] = {}
    with announcing(len(options.models) * len(_METHODS)) as announce:
        for name in options.models:
            found = {}
            for method in _METHODS:
                announce(f"{name}, {method.title}")
                found[method.name] = _computed(name, method)
            float32 = found.pop("float32")
            figures[name] = {m: compared(g, float32) for m, g in found.items()}
    publish(
        "gradients",
        markdown(figures),
        figures,
        is_whole=options.models == names,
    )


def _method(name: str) -> Variant:
    return next(method for method in _METHODS if method.name == name)


def _computed(name: str, method: Variant) -> Gradients:
    """Return the gradients of a model, computed by a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gradients.npz"
        worker_lines("gradients", "--worker", name, method.name, str(file))
        with np.load(file) as kept:
            return dict(kept)


def gradients_of(name: str, method: Variant) -> Gradients:
    """Return the gradients of a model's first step by variable, in this process."""
    switch_on(method.method)
    model = build_model(entry(name))
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout | keras.layers.MultiHeadAttention):
            _drop_nothing(layer)
    inputs, targets = sample_of(entry(name), "train")
    if method is _FLOOR:
        inputs = tf.nest.map_structure(_rounded, inputs)
        for weight in model.trainable_variables:
            weight.assign(_rounded(tf.convert_to_tensor(weight)))

    @tf.function(jit_compile=False)
    def step(inputs: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(inputs, targets, model(inputs, training=True))
        found = tape.gradient(loss, model.trainable_variables)
        return [tf.convert_to_tensor(each) for each in found]

    found = step(inputs, targets)
    names = (
        f"{i}.{weight.path.replace('/', '.')}"
        for i, weight in enumerate(model.trainable_variables)
    )
    return dict(zip(names, map(np.asarray, found), strict=True))


def _drop_nothing(layer: keras.Layer) -> None:
    if isinstance(layer, keras.layers.Dropout):
        layer.rate = 0.0
    else:
        layer._dropout = 0.0
        layer._dropout_layer.rate = 0.0


def _rounded(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype != tf.float32:
        return tensor
    return tf.cast(tf.cast(tensor, tf.bfloat16), tf.float32)


def compared(mine: Gradients, float32: Gradients) -> Figures:
    """Return how far gradients are from those of float32."""
    pairs = [(mine[name].ravel(), float32[name].ravel()) for name in float32]
    norms = [float(np.linalg.norm(right)) for _, right in pairs]
    worst = [
        _cosine(left, right)
        for (left, right), norm in zip(pairs, norms, strict=True)
        if norm >= _LEAST_SHARE * max(norms)
    ]
    left, right = (np.concatenate(side) for side in zip(*pairs, strict=True))
    error = float(np.linalg.norm(left - right) / np.linalg.norm(right))
    return error, _cosine(left, right), min(worst)


def _cosine(left: np.ndarray, right: np.ndarray) -> float:
    norms = float(np.linalg.norm(left)) * float(np.linalg.norm(right))
    return float(left @ right) / norms if norms else 0.0


def markdown(figures: Mapping[str, Mapping[str, Figures]]) -> str:
    """Return the table, what its columns mean, and what follows from it."""
    rows = [
        (
            entry(name).title,
            title,
            *(f"{by_method[method.name][place]:.3g}" for method in _COMPARED),
        )
        for name, by_method in figures.items()
        for place, title in enumerate(("error", "cosine", "worst variable"))
    ]
    return "\n\n".join(
        (markdown_table(_TITLES, rows), _EXPLANATION, _conclusion(figures))
    )


def _conclusion(figures: Mapping[str, Mapping[str, Figures]]) -> str:
    behind = [
        entry(name).title
        for name, by_method in figures.items()
        if by_method[_OURS.name][0] > min(by_method[peer][0] for peer in _PEERS)
    ]
    ratios = [
        by_method[_OURS.name][0] / by_method[_FLOOR.name][0]
        for by_method in figures.values()
    ]
    return (
        f"- tf-amp's error is larger than the better peer's for {len(behind)} of "
        f"{len(figures)} models{': ' if behind else ''}{', '.join(behind)}.\n"
        f"- It is {min(ratios):.2g} to {max(ratios):.2g} times that of rounding once."
    )


if __name__ == "__main__":
    main()
