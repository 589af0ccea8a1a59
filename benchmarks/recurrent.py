"""An LSTM beside its products and gates alone: ``python -m benchmarks.recurrent``.

The language model of the other benchmarks is a loop of small operations. Here its steps
by tf-amp take turns, in one process, with all its products, in bfloat16, and with all
its gates, in float32, in straight lines: nothing starts a loop, writes results to lists
or computes a loss, and each weight is in memory as its product likes it best.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

import tf_amp
from benchmarks.catalog import MODES, entry
from benchmarks.models.lstm import LENGTH, VOCABULARY, WIDTH
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.steps import build_model, run_until_decided, step_of
from benchmarks.turns import compared, quartiles

_LAYERS, _ROUNDS = 2, 15
_TITLES = ("step", "products ms", "gates ms", "tf-amp ms", "tf-amp over both")
_EXPLANATION = (
    f"Medians of {_ROUNDS} rounds, and the median of the ratios of one round, with "
    "quartiles in brackets. *products*, *gates*: all those of a step one after "
    "another, in a function without a loop; the products in bfloat16, the gates in "
    "float32, with the casts between them. Training also has the gradients of both."
)

Call = Callable[..., tf.Tensor]


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on recurrent layers."""
    argparse.ArgumentParser(prog="python -m benchmarks.recurrent").parse_args()
    rows, samples = [], {}
    for mode in MODES:
        parts = [_in_a_line(products(mode)), _in_a_line(_gates(mode))]
        described = entry("lstm")
        tf_amp.enable(dtype="bfloat16")
        step = step_of(build_model(described), described, mode)
        run_until_decided(step, fewest=1)
        seconds = np.array(compared((*parts, step), _ROUNDS).seconds)
        tf_amp.disable()
        rows.append((f"{described.title}, {mode}", *_cells(seconds)))
        samples[mode] = seconds.tolist()
    table = "\n\n".join((markdown_table(_TITLES, rows), _EXPLANATION))
    publish("recurrent", table, samples, rounds=_ROUNDS)


def _cells(seconds: np.ndarray) -> tuple[str, ...]:
    return (
        *(f"{1e3 * each:.1f}" for each in np.median(seconds, 0)),
        quartiles(seconds[:, 2] / (seconds[:, 0] + seconds[:, 1])),
    )


def _in_a_line(parts: Sequence[tuple[int, Call, Sequence[tf.Tensor]]]) -> Call:
    """Return what makes calls one after another, each so many times."""

    def run(operands: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        results: list[tf.Tensor] = []
        for (times, call, _), own in zip(parts, operands, strict=True):
            for _ in range(times):
                with tf.control_dependencies(results[-1:]):
                    results.append(call(*own))
        # What nothing reads would not be computed.
        return results

    function = tf.function(run, autograph=False)
    operands = [own for _, _, own in parts]
    function(operands)
    return lambda: function(operands)[-1]


def products(mode: str) -> list[tuple[int, Call, Sequence[tf.Tensor]]]:
    """Return all products of a step, and how often it computes each."""
    batch = entry("lstm").batch(mode)
    rows, gates, each = batch * LENGTH, 4 * WIDTH, _LAYERS * LENGTH
    # Of inputs, of states, and of the layer behind.
    sizes = [
        (_LAYERS, rows, WIDTH, gates),
        (each, batch, WIDTH, gates),
        (1, rows, WIDTH, VOCABULARY),
    ]
    if mode == "train":
        sizes += [
            (each, batch, gates, WIDTH),
            (_LAYERS, rows, gates, WIDTH),
            (2 * _LAYERS, WIDTH, rows, gates),
            (1, rows, VOCABULARY, WIDTH),
            (1, WIDTH, rows, VOCABULARY),
        ]
    return [
        (times, tf.matmul, [_drawn(m, k, tf.bfloat16), _drawn(k, n, tf.bfloat16)])
        for times, m, k, n in sizes
    ]


def _gates(mode: str) -> list[tuple[int, Call, Sequence[tf.Tensor]]]:
    """Return the gates of a step, and how often it computes each."""
    batch, each = entry("lstm").batch(mode), _LAYERS * LENGTH
    product = _drawn(batch, 4 * WIDTH, tf.bfloat16)
    of_input, cell = _drawn(batch, 4 * WIDTH), _drawn(batch, WIDTH)
    gates: list[tuple[int, Call, Sequence[tf.Tensor]]]
    gates = [(each, _next_state, [product, of_input, cell])]
    if mode == "train":
        gates += [(each, _gradient, [product, of_input, *[cell] * 5])]
    return gates


def _next_state(product: tf.Tensor, of_input: tf.Tensor, cell: tf.Tensor) -> tf.Tensor:
    """Return the next state, for the next product."""
    total = tf.cast(product, tf.float32) + of_input
    opened = tf.sigmoid(total[:, : 3 * WIDTH])
    take, forget, show = tf.split(opened, 3, axis=1)
    cell = forget * cell + take * tf.tanh(total[:, 3 * WIDTH :])
    return tf.cast(show * tf.tanh(cell), tf.bfloat16)


def _gradient(
    product: tf.Tensor,
    opened: tf.Tensor,
    new: tf.Tensor,
    cell: tf.Tensor,
    shown: tf.Tensor,
    of_state: tf.Tensor,
    of_cell: tf.Tensor,
) -> tf.Tensor:
    """Return the gradient of the gates, for the products, of that of a state."""
    of_state += tf.cast(product[:, :WIDTH], tf.float32)
    take, forget, show, _ = tf.split(opened, 4, axis=1)
    of_cell += tf.raw_ops.TanhGrad(y=shown, dy=of_state * show)
    of_opened = tf.concat((of_cell * new, of_cell * cell, of_state * shown), 1)
    of_total = (
        tf.raw_ops.SigmoidGrad(y=opened[:, : 3 * WIDTH], dy=of_opened),
        tf.raw_ops.TanhGrad(y=new, dy=of_cell * take),
        of_cell * forget,
    )
    return tf.cast(tf.concat(of_total, 1), tf.bfloat16)


def _drawn(rows: int, columns: int, dtype: tf.DType = tf.float32) -> tf.Tensor:
    return tf.cast(tf.random.stateless_normal((rows, columns), (1, 2)), dtype)


if __name__ == "__main__":
    main()
