"""Where the blocks of a block-sparse matrix are.

A layout holds no numbers of the matrix and no block size: one layout serves several
matrices of the same form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
