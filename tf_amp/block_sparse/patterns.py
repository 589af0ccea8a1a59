"""Layouts known to train well, for matrices of any shape in blocks.

Each of them reads every row and writes every column. Graphs over numbered nodes make
layouts of other shapes by stretching: node `i` of `n` is row `i * rows // n`, and
column `i * columns // n`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tf_amp.block_sparse.layout import BlockLayout, checked_shape
from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.errors import ConfigError

# Of a random layout, tried for each block.
_EXCHANGES = 10


def random_layout(
    shape: Sequence[int], density: float, *, seed: int = 0
) -> BlockLayout:
    """Return blocks at random places, spread evenly over rows and over columns.

    Rows have the same number of blocks but for one, and so have columns: a product of
    such a layout takes few and equal parts. Evenly spread places are shuffled, then
    pairs of blocks exchange their columns at random.

    Args:
      shape: rows and columns, counted in blocks.
      density: share of the places that get a block, above 0 and up to 1. There are at
        least as many blocks as the longer side has.
      seed: of the draws; from 0. The same one gives the same layout.

    Raises:
      ConfigError: the shape is not two positive integers, or the density out of range.

    References:
      Rao, Jana, Bandyopadhyay, A Markov Chain Monte Carlo Method for Generating Random
      (0,1)-Matrices with Given Marginals, Sankhya 1996.
    """
    rows, columns = checked_shape(shape)
    if not 0.0 < density <= 1.0:
        raise ConfigError(
            f"density: received {density!r}; allowed is above 0, up to 1."
        )
    draws = np.random.default_rng(seed)
    count = max(round(density * rows * columns), rows, columns)
    steps = np.arange(count)
    row = draws.permutation(rows)[steps % rows]
    # Once round, the same rows go on with the next columns.
    shifted = steps + steps // math.lcm(rows, columns)
    column = draws.permutation(columns)[shifted % columns]
    mask = np.zeros((rows, columns), bool)
    mask[row, _exchanged(row.tolist(), column.tolist(), draws)] = True
    return BlockLayout.from_mask(mask)


def _exchanged(
    rows: list[int], columns: list[int], draws: np.random.Generator
) -> list[int]:
    """Return columns after exchanges that give no row the same one twice."""
    columns = columns.copy()
    places = set(zip(rows, columns, strict=True))
    pairs = draws.integers(len(rows), size=(_EXCHANGES * len(rows), 2)).tolist()
    for i, j in pairs:
        new = (rows[i], columns[j]), (rows[j], columns[i])
        if new[0] in places or new[1] in places:
            continue
        places -= {(rows[i], columns[i]), (rows[j], columns[j])}
        places |= {*new}
        columns[i], columns[j] = columns[j], columns[i]
    return columns


def banded_layout(shape: Sequence[int], bandwidth: int) -> BlockLayout:
    """Return blocks along the diagonal.

    A square matrix of `n` rows has those places where row and column differ by
    `bandwidth` at most; of another shape, the stretched form of the longer side's.

    Args:
      shape: rows and columns, counted in blocks.
      bandwidth: blocks on either side of the diagonal, from 0.

    Raises:
      ConfigError: the shape is not two positive integers, or the width is negative.
    """
    check_count("banded_layout", "bandwidth", bandwidth, 0)
    nodes = np.arange(max(checked_shape(shape)))
    return _stretched(np.abs(nodes[:, None] - nodes) <= bandwidth, shape)


def barabasi_albert_layout(
    shape: Sequence[int], attachments: int, *, seed: int = 0
) -> BlockLayout:
    """Return the edges of a scale-free graph: few rows and columns have many blocks.

    The graph grows from a star of `attachments + 1` nodes; each further node is joined
    to `attachments` distinct earlier ones, drawn in proportion to their edges. Edges
    count in both directions, and each node has one to itself.

    Args:
      shape: rows and columns, counted in blocks.
      attachments: edges of a new node, from 1, less than the longer side.
      seed: of the draws; from 0. The same one gives the same layout.

    Raises:
      ConfigError: the shape is not two positive integers, or `attachments` are too few
        or too many.

    References:
      A. Barabasi, R. Albert, Emergence of Scaling in Random Networks, Science 286,
      1999; as a layout of blocks: Gray et al., 2017.
    """
    nodes = max(checked_shape(shape))
    check_count("barabasi_albert_layout", "attachments", attachments, 1)
    if attachments >= nodes:
        raise ConfigError(
            f"attachments: received {attachments}; allowed are fewer than the longer "
            f"side of the shape, {nodes}."
        )
    draws = np.random.default_rng(seed)
    mask = np.eye(nodes, dtype=bool)
    # A node stands here once for each of its edges.
    ends = [*range(attachments), *[attachments] * attachments]
    mask[attachments, :attachments] = True
    for node in range(attachments + 1, nodes):
        chosen: set[int] = set()
        while len(chosen) < attachments:
            chosen.add(ends[draws.integers(len(ends))])
        mask[node, sorted(chosen)] = True
        ends += [*sorted(chosen), *[node] * attachments]
    return _stretched(mask | mask.T, shape)


def butterfly_layout(
    shape: Sequence[int], max_stride: int | None = None
) -> BlockLayout:
    """Return the flat butterfly: the sum, not the product, of a butterfly's factors.

    Row and column are equal, or their numbers differ in one binary digit: a row of `n`
    blocks has `1 + log2(n)`, and `log2(n)` layers in turn join each input to each
    output.

    Args:
      shape: rows and columns, counted in blocks; a side that is no power of two is a
        stretched form of the next one.
      max_stride: largest distance of row and column, a power of two; all if not given.

    Raises:
      ConfigError: the shape is not two positive integers, or the stride is not
        positive.

    References:
      T. Dao et al., Learning Fast Algorithms for Linear Transforms Using Butterfly
      Factorizations, ICML 2019; flat and in blocks: B. Chen et al., Pixelated
      Butterfly, ICLR 2022.
    """
    nodes = 1 << (max(checked_shape(shape)) - 1).bit_length()
    stride = nodes if max_stride is None else max_stride
    check_count("butterfly_layout", "max_stride", stride, 1)
    numbers = np.arange(nodes)
    differ = numbers[:, None] ^ numbers
    is_power = (differ & (differ - 1)) == 0
    return _stretched(is_power & (differ <= stride), shape)


def _stretched(mask: npt.NDArray[np.bool_], shape: Sequence[int]) -> BlockLayout:
    rows, columns = checked_shape(shape)
    found = np.zeros((rows, columns), bool)
    row, column = np.nonzero(mask)
    found[row * rows // len(mask), column * columns // len(mask)] = True
    return BlockLayout.from_mask(found)
