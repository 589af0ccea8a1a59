"""The product of a matrix and a block-sparse one, and its gradients.

Examples are put last, so that what is gathered for a batched product are whole blocks
of features, one after the other in memory, and nothing is summed afterwards:

    x^T [rows, size, batch] --> gather [lines, blocks * size, batch]
    blocks [lines, blocks * size, size]^T @ that = y^T [lines, size, batch]

The product, the product with the transposed matrix and the products that are the
gradient of the blocks are each linear in two operands, and their gradients are each
other: no gradient is ever scattered or dense, and all can be differentiated again.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tf_amp.block_sparse.layout import BlockLayout, Indices
from tf_amp.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class LineGroup:
    """Lines of blocks, all columns or all rows, with the same number of blocks.

    All are int32: the lines [lines]; for each [lines, blocks] the rows (or columns)
    that its blocks are in, and where these blocks stand in the layout.
    """

    lines: Indices
    crossing: Indices
    blocks: Indices


@dataclasses.dataclass(frozen=True)
class Grouping:
    """Groups that hold every line once, each of which is one batched product.

    Lines with the same number of blocks form a group, so that nothing is padded: a
    layout with few distinct numbers takes few products.

    Attributes:
      groups: by ascending number of blocks.
      line_order: int32 [lines], where each line stands in the groups put together.
      block_order: int32 [blocks], the same of each block.
    """

    groups: tuple[LineGroup, ...]
    line_order: Indices
    block_order: Indices


@functools.lru_cache(maxsize=1024)
def columns_in_groups(layout: BlockLayout) -> Grouping:
    """Return the columns of a layout, grouped by their number of blocks."""
    # Sorted by column, then by row.
    order = np.argsort(layout.columns, kind="stable")
    return _grouping(layout.columns[order], layout.rows[order], order)


@functools.lru_cache(maxsize=1024)
def rows_in_groups(layout: BlockLayout) -> Grouping:
    """Return the rows of a layout, grouped by their number of blocks."""
    return _grouping(layout.rows, layout.columns, np.arange(len(layout)))


def _grouping(lines: Indices, crossing: Indices, blocks: np.ndarray) -> Grouping:
    counts = np.bincount(lines)
    begins = np.cumsum(counts) - counts
    groups = []
    for count in np.unique(counts):
        members = np.flatnonzero(counts == count)
        at = begins[members][:, None] + np.arange(count)
        parts = (members, crossing[at], blocks[at])
        groups.append(LineGroup(*(each.astype(np.int32) for each in parts)))
    return Grouping(
        tuple(groups),
        _inverse(np.concatenate([group.lines for group in groups])),
        _inverse(np.concatenate([group.blocks.ravel() for group in groups])),
    )


def _inverse(permutation: Indices) -> Indices:
    return np.argsort(permutation).astype(np.int32)


def block_sparse_matmul(x: Any, blocks: Any, layout: BlockLayout) -> tf.Tensor:
    """Return the product of a matrix and a block-sparse one.

    With `dense` the matrix that has `blocks[i]` in row `layout.rows[i]` and column
    `layout.columns[i]` of blocks, and zeros elsewhere, this is `x @ dense`. Both
    operands have gradients, and these have gradients.

    Args:
      x: floating [..., rows * block_size].
      blocks: of the same type, [blocks, block_size, block_size], in the layout's order.
      layout: where the blocks are.

    Returns:
      [..., columns * block_size], of the same type.

    Raises:
      ConfigError: the blocks are not as many as the layout has or not square, or `x`
        is not as wide as the layout's rows; the message names the row.

    References:
      S. Gray, A. Radford, D. Kingma, GPU Kernels for Block-Sparse Weights, 2017.
    """
    blocks = tf.convert_to_tensor(blocks)
    x = tf.convert_to_tensor(x, dtype=blocks.dtype)
    shape = blocks.shape
    if shape.rank != 3 or shape[0] != len(layout) or shape[1] != shape[2]:
        raise ConfigError(
            f"blocks: received the shape {shape}; allowed is [{len(layout)}, "
            f"block_size, block_size] for {layout}."
        )
    size = int(shape[1])
    check_width(x.shape[-1] if x.shape.rank else None, size, layout.shape[0])
    rows, columns = layout.shape
    batch_shape = tf.shape(x)[:-1]
    matrix = x if x.shape.rank == 2 else tf.reshape(x, (-1, x.shape[-1]))
    by_rows = tf.reshape(tf.transpose(matrix), (rows, size, -1))
    by_columns = _product(by_rows, blocks, layout)
    product = tf.transpose(tf.reshape(by_columns, (columns * size, -1)))
    if x.shape.rank != 2:
        product = tf.reshape(product, tf.concat((batch_shape, [columns * size]), 0))
    return tf.ensure_shape(product, (*x.shape[:-1], columns * size))


def check_width(width: int | None, block_size: int, rows: int) -> None:
    """Raise ConfigError, naming the row, unless so many inputs are rows of blocks."""
    if width == rows * block_size:
        return
    whole, rest = divmod(width or 0, block_size)
    cut = f"row {whole} of blocks would have {rest} of them" if rest else ""
    missing = f"row {whole} of blocks would have none" if whole < rows else ""
    beyond = f"there is no row {rows} of blocks for the rest"
    raise ConfigError(
        f"x: received {width} inputs for {rows} rows of blocks of size {block_size}, "
        f"which are {rows * block_size} inputs: {cut or missing or beyond}."
    )


def _product(
    x: tf.Tensor, blocks: tf.Tensor, layout: BlockLayout, *, transposed: bool = False
) -> tf.Tensor:
    """Return [columns, size, batch] of `x`, [rows, size, batch].

    With the transposed matrix, [rows, size, batch] of [columns, size, batch].
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def product(x: tf.Tensor, blocks: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            dx = _product(dy, blocks, layout, transposed=not transposed)
            return dx, _outer(*((dy, x) if transposed else (x, dy)), layout)

        if transposed:
            flipped = tf.transpose(blocks, (0, 2, 1))
            return _sums(x, flipped, rows_in_groups(layout)), gradient
        return _sums(x, blocks, columns_in_groups(layout)), gradient

    return product(x, blocks)


def _outer(x: tf.Tensor, y: tf.Tensor, layout: BlockLayout) -> tf.Tensor:
    """Return [blocks, size, size], products of a row's `x` and a column's `y`."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def product(x: tf.Tensor, y: tf.Tensor) -> Any:
        def gradient(db: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            dx = _product(y, db, layout, transposed=True)
            return dx, _product(x, db, layout)

        grouping, size, products = rows_in_groups(layout), x.shape[1], []
        for group in grouping.groups:
            lines, count = group.blocks.shape
            gathered = _taken(y, group.crossing, (lines, count * size, -1))
            own = _taken(x, group.lines, (lines, size, -1))
            beside = tf.matmul(own, gathered, transpose_b=True)
            apart = tf.reshape(beside, (lines, size, count, size))
            apart = tf.transpose(apart, (0, 2, 1, 3))
            products.append(tf.reshape(apart, (lines * count, size, size)))
        return _in_order(products, grouping.block_order), gradient

    return product(x, y)


def _sums(x: tf.Tensor, blocks: tf.Tensor, grouping: Grouping) -> tf.Tensor:
    """Return for each line the sum of its blocks, transposed, times what they cross."""
    size = blocks.shape[1]
    sums = []
    for group in grouping.groups:
        lines, count = group.blocks.shape
        gathered = _taken(x, group.crossing, (lines, count * size, -1))
        weights = _taken(blocks, group.blocks, (lines, count * size, size))
        sums.append(tf.matmul(weights, gathered, transpose_a=True))
    return _in_order(sums, grouping.line_order)


def _taken(x: tf.Tensor, indices: Indices, shape: tuple[int, ...]) -> tf.Tensor:
    """Return parts of `x` along its first dimension, in another shape."""
    return tf.reshape(_gathered(x, indices.ravel()), shape)


def _gathered(x: tf.Tensor, indices: Indices) -> tf.Tensor:
    """Return parts of `x` along its first dimension; all in order are `x` itself."""
    in_order = np.array_equal(indices, np.arange(x.shape[0]))
    return x if in_order else tf.gather(x, indices)


def _in_order(parts: list[tf.Tensor], order: Indices) -> tf.Tensor:
    together = parts[0] if len(parts) == 1 else tf.concat(parts, 0)
    return _gathered(together, order)
