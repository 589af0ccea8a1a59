"""Where the blocks of a block-sparse matrix are, and layouts known to train well.

A layout holds no numbers of the matrix and no block size: one layout serves several
matrices of the same form. Those that train well are for matrices of any shape in
blocks: each reads every row and writes every column. Graphs over numbered nodes make
layouts of other shapes by stretching: node `i` of `n` is row `i * rows // n`, and
column `i * columns // n`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.errors import ConfigError

Indices = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True, eq=False)
class BlockLayout:
    """The places of the blocks of one matrix, sorted by row, then by column.

    The order is that of `numpy.nonzero`, and of the blocks that go with the layout. A
    layout is immutable, is equal to another with the same places, and can be a key.

    Attributes:
      shape: rows and columns of the matrix, counted in blocks.
      rows: int32 [blocks], the row of each block; read-only.
      columns: int32 [blocks], its column; read-only.

    Raises:
      ConfigError: the shape is not two positive integers, indices are of unequal
        number, not integers, not sorted, out of range or given twice, or a row or a
        column has no block; the message names the row or column.
    """

    shape: tuple[int, int]
    rows: Indices
    columns: Indices

    def __init__(
        self, shape: Sequence[int], rows: npt.ArrayLike, columns: npt.ArrayLike
    ) -> None:
        """Check the places and keep a copy of them."""
        checked = checked_shape(shape)
        pair = _checked_indices(rows, "rows"), _checked_indices(columns, "columns")
        _check_places(checked, *pair)
        kept = [each.astype(np.int32) for each in pair]
        for each in kept:
            each.setflags(write=False)
        object.__setattr__(self, "shape", checked)
        object.__setattr__(self, "rows", kept[0])
        object.__setattr__(self, "columns", kept[1])

    @classmethod
    def from_mask(cls, mask: npt.ArrayLike) -> BlockLayout:
        """Return the layout with a block where a mask is true.

        Args:
          mask: bool [rows, columns], in blocks.

        Raises:
          ConfigError: it has not two dimensions, or a row or a column of it is empty.
        """
        given = np.asarray(mask)
        if given.ndim != 2:
            raise ConfigError(
                f"mask: received the shape {given.shape}; allowed is [rows, columns], "
                "counted in blocks."
            )
        return cls(given.shape, *np.nonzero(given))

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return bool [rows, columns], true where there is a block."""
        found = np.zeros(self.shape, bool)
        found[self.rows, self.columns] = True
        return found

    @property
    def density(self) -> float:
        """The share of the matrix that is in blocks, above 0 and up to 1."""
        return len(self) / (self.shape[0] * self.shape[1])

    def __len__(self) -> int:
        """Return how many blocks there are."""
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        """Return whether the other one has the same places."""
        return isinstance(other, BlockLayout) and self._key() == other._key()

    def __hash__(self) -> int:
        """Return what equal layouts have in common."""
        return hash(self._key())

    def __repr__(self) -> str:
        """Show shape, number of blocks and density."""
        rows, columns = self.shape
        return (
            f"BlockLayout({rows} x {columns}, {len(self)} blocks, "
            f"density {self.density:.3g})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as what it is made of."""
        return BlockLayout, (self.shape, self.rows, self.columns)

    def _key(self) -> tuple[tuple[int, int], bytes, bytes]:
        return self.shape, self.rows.tobytes(), self.columns.tobytes()


def checked_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns, in blocks; ConfigError unless two positive integers."""
    sizes = tuple(shape)
    integers = all(isinstance(each, int | np.integer) for each in sizes)
    if len(sizes) != 2 or not integers or min(sizes) < 1:
        raise ConfigError(
            f"shape: received {shape!r}; allowed are two positive integers, rows and "
            "columns counted in blocks."
        )
    return int(sizes[0]), int(sizes[1])


def _checked_indices(given: npt.ArrayLike, name: str) -> npt.NDArray[np.int64]:
    indices = np.asarray(given)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ConfigError(
            f"{name}: received {indices.dtype} of shape {indices.shape}; allowed are "
            "integers, one for each block."
        )
    return indices.astype(np.int64)


def _check_places(
    shape: tuple[int, int], rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]
) -> None:
    if len(rows) != len(columns):
        raise ConfigError(
            f"rows, columns: received {len(rows)} and {len(columns)}; allowed is one "
            "of each for every block."
        )
    outside = (rows < 0) | (rows >= shape[0]) | (columns < 0) | (columns >= shape[1])
    if outside.any():
        at = int(outside.argmax())
        raise ConfigError(
            f"block {at}: row {rows[at]}, column {columns[at]} is out of range; there "
            f"are {shape[0]} rows and {shape[1]} columns of blocks, counted from 0."
        )
    steps = np.diff(rows * shape[1] + columns)
    if (steps <= 0).any():
        at = int((steps <= 0).argmax()) + 1
        place = f"row {rows[at]}, column {columns[at]}"
        if steps[at - 1] == 0:
            raise ConfigError(f"{place} is given twice; leave out one of the two.")
        raise ConfigError(
            f"{place} comes after row {rows[at - 1]}, column {columns[at - 1]}; sort "
            "by row, then by column, and the blocks with them."
        )
    lines = (
        ("row", rows, shape[0], "its inputs would be ignored"),
        ("column", columns, shape[1], "its outputs stay zero"),
    )
    for name, indices, count, why in lines:
        empty = np.flatnonzero(np.bincount(indices, minlength=count) == 0)
        if len(empty):
            raise ConfigError(
                f"{name} {empty[0]} has no block ({len(empty)} of {count} such "
                f"{name}s), so {why}; give each {name} one block at least."
            )


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
    places = list(zip(row.tolist(), column.tolist(), strict=True))
    taken = set(places)
    pairs = draws.integers(count, size=(_EXCHANGES * count, 2)).tolist()
    for i, j in pairs:
        (row_i, column_i), (row_j, column_j) = places[i], places[j]
        new = (row_i, column_j), (row_j, column_i)
        # No row gets the same column twice.
        if taken.isdisjoint(new):
            taken -= {places[i], places[j]}
            taken |= {*new}
            places[i], places[j] = new
    mask = np.zeros((rows, columns), bool)
    mask[tuple(zip(*places, strict=True))] = True
    return BlockLayout.from_mask(mask)


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
