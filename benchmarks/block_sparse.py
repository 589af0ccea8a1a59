"""Block-sparse products against dense and sparse ones.

``python -m benchmarks.block_sparse`` times products of a square matrix, alone and with
the gradients of both operands, in turns in one process.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tf_amp
from benchmarks.machine import this_machine
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.turns import compared
from tf_amp.block_sparse import (
    BlockLayout,
    barabasi_albert_layout,
    block_sparse_matmul,
    random_layout,
)

_SIDE, _SIZE, _BATCH = 64, 64, 256
_WIDTH = _SIDE * _SIZE
_LAYOUTS: Mapping[str, BlockLayout] = {
    "random, 90 %": random_layout((_SIDE, _SIDE), 0.10),
    "Barabasi-Albert": barabasi_albert_layout((_SIDE, _SIDE), 3),
    "random, 75 %": random_layout((_SIDE, _SIDE), 0.25),
}
_PROFILE = "cpu-avx512-bf16"
# TensorFlow's gradient of sparse values gathers a row of the batch for each of them,
# twice; more than so many bytes are not tried.
_MOST_BYTES = 4 << 30
_TITLES = (
    "layout",
    "sparsity",
    "products",
    "types",
    "dense ms",
    "A/A",
    "block-sparse",
    "sparse ms",
    "block-sparse over sparse",
)
_PREDICTED_TITLES = (
    "layout",
    "products",
    "dense float32 ms",
    "block-sparse",
    "dense mixed ms",
    "block-sparse",
)

Call = Callable[[], Any]
Samples = dict[str, list[list[float]]]


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on block-sparse products."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.block_sparse")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    measured = [row for name in _LAYOUTS for row in _measured(name, options.rounds)]
    tf_amp.enable(device_profile=_PROFILE, dtype="bfloat16")
    predicted = [row for name in _LAYOUTS for row in _predicted(name)]
    tf_amp.disable()
    table = "\n\n".join(
        (
            markdown_table(_TITLES, [cells for cells, _ in measured]),
            _explanation(options.rounds),
            markdown_table(_PREDICTED_TITLES, predicted),
            f"Predicted with the profile {_PROFILE}, not measured: milliseconds of the "
            "dense product as `tf_amp.explain` prices it in float32 and after its "
            "rewriting, and how many times as fast the block-sparse one is priced.",
        )
    )
    publish(
        "block_sparse",
        table,
        {", ".join(cells[:4]): samples for cells, samples in measured},
        rounds=options.rounds,
        is_whole=not options.dry,
    )


def _explanation(rounds: int) -> str:
    low = this_machine().has_low_units
    types = "" if low else " This processor has no 16-bit units: plans stay float32."
    return (
        f"[{_BATCH}, {_WIDTH}] times [{_WIDTH}, {_WIDTH}] in blocks of {_SIZE}. "
        "*backward*: also the gradients of both operands. *block-sparse*: how many "
        "times as fast as `tf.matmul` of the dense matrix; *A/A*: that of a second "
        f"dense one; medians of {rounds} rounds, quartiles in brackets. *sparse*: "
        "`tf.sparse.sparse_dense_matmul` of the same numbers, in turns with the "
        "block-sparse product, a fifth of the rounds; -: not tried, for mixed types "
        f"and where its gradient gathers more than {_MOST_BYTES >> 30} GiB. *mixed*: "
        f"as tf-amp rewrites it, bfloat16.{types}"
    )


def _measured(name: str, rounds: int) -> Iterator[tuple[tuple[str, ...], Samples]]:
    """Yield the cells of each row, and seconds of its calls, round by round."""
    layout = _LAYOUTS[name]
    x, dense, blocks = _operands(layout)
    for backward in (False, True):
        for types in ("float32", "mixed"):
            with tf_amp.mixed_precision_scope(enabled=types == "mixed"):
                whole, again, ours = (
                    _call(product, backward, x, weights)
                    for product, weights in (
                        (tf.matmul, dense),
                        (tf.matmul, dense),
                        (_block_product(layout), blocks),
                    )
                )
            timed = compared((whole, again, ours), rounds)
            samples = {"dense, dense, block-sparse": timed.seconds}
            sparse: tuple[str, ...] = ("-", "-")
            if types == "float32" and _is_feasible(layout, backward):
                (indices, values) = _sparse_operands(layout, blocks)
                other = _call(_sparse_product(indices), backward, x, values)
                found = compared((other, ours), max(3, rounds // 5))
                sparse = found.cells
                samples["sparse, block-sparse"] = found.seconds
            sparsity = f"{1 - layout.density:.0%}"
            words = "forward, backward" if backward else "forward"
            row = (name.partition(",")[0], sparsity, words, types)
            yield (*row, *timed.cells, *sparse), samples


def _is_feasible(layout: BlockLayout, backward: bool) -> bool:
    values = len(layout) * _SIZE**2
    return not backward or 2 * values * _BATCH * 4 <= _MOST_BYTES


def _operands(layout: BlockLayout) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    shapes = ((_BATCH, _WIDTH), (_WIDTH, _WIDTH), (len(layout), _SIZE, _SIZE))
    x, dense, blocks = (
        tf.random.stateless_normal(shape, (1, i)) for i, shape in enumerate(shapes)
    )
    return x, dense, blocks


def _block_product(layout: BlockLayout) -> Callable[..., tf.Tensor]:
    return lambda x, blocks: block_sparse_matmul(x, blocks, layout)


def _sparse_operands(
    layout: BlockLayout, blocks: tf.Tensor
) -> tuple[np.ndarray, tf.Tensor]:
    """Return the places [values, 2] of the transposed matrix, in order, and values."""
    inside = np.arange(_SIZE)
    row = (layout.rows[:, None] * _SIZE + inside)[:, :, None] + 0 * inside
    column = (layout.columns[:, None] * _SIZE + inside)[:, None] + 0 * inside[:, None]
    order = np.lexsort((row.ravel(), column.ravel()))
    places = np.stack((column.ravel(), row.ravel()), 1)[order].astype(np.int64)
    return places, tf.gather(tf.reshape(blocks, [-1]), order)


def _sparse_product(places: np.ndarray) -> Callable[..., tf.Tensor]:
    def product(x: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        matrix = tf.SparseTensor(places, values, (_WIDTH, _WIDTH))
        return tf.transpose(tf.sparse.sparse_dense_matmul(matrix, x, adjoint_b=True))

    return product


def _call(
    product: Callable[..., tf.Tensor], backward: bool, *operands: tf.Tensor
) -> Call:
    """Return what runs a product, its first calls done; it returns one result."""
    function = _function(product, backward)
    for _ in range(2):
        function(*operands)
    return lambda: function(*operands)[0]


def _function(product: Callable[..., tf.Tensor], backward: bool) -> Any:
    def step(x: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
        result = product(x, weights)
        if not backward:
            return [result]
        return [result, *tf.gradients(result, [x, weights], grad_ys=result)]

    return tf.function(step, jit_compile=False, autograph=False)


def _predicted(name: str) -> Iterator[tuple[str, ...]]:
    layout = _LAYOUTS[name]
    for backward in (False, True):
        dense = _plan(tf.matmul, backward, (_WIDTH, _WIDTH))
        shape = (len(layout), _SIZE, _SIZE)
        ours = _plan(_block_product(layout), backward, shape)
        yield (
            name,
            "forward, backward" if backward else "forward",
            f"{1e3 * dense.seconds_before:.3g}",
            f"{dense.seconds_before / ours.seconds_before:.2f}",
            f"{1e3 * dense.seconds_after:.3g}",
            f"{dense.seconds_after / ours.seconds_after:.2f}",
        )


def _plan(
    product: Callable[..., tf.Tensor], backward: bool, shape: Sequence[int]
) -> tf_amp.Plan:
    specs = tf.TensorSpec((_BATCH, _WIDTH)), tf.TensorSpec(shape)
    return tf_amp.explain(_function(product, backward), *specs)


if __name__ == "__main__":
    main()
