"""Layouts are checked, immutable values."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tf_amp import ConfigError
from tf_amp.block_sparse import BlockLayout

DIAGONAL = BlockLayout((2, 2), [0, 1], [0, 1])


@given(arrays.arrays(bool, st.tuples(st.integers(1, 6), st.integers(1, 6))))
def test_a_mask_comes_back_unless_a_line_is_empty(mask: np.ndarray) -> None:
    if mask.any(0).all() and mask.any(1).all():
        layout = BlockLayout.from_mask(mask)
        assert (layout.mask() == mask).all()
        assert len(layout) == mask.sum() and layout.density == mask.mean()
        assert (np.diff(layout.rows) >= 0).all()
        assert layout.rows.dtype == layout.columns.dtype == np.int32
    else:
        with pytest.raises(ConfigError, match=r"(row|column) \d has no block"):
            BlockLayout.from_mask(mask)


def test_a_layout_is_a_value() -> None:
    same = BlockLayout.from_mask(np.eye(2))
    other = BlockLayout((2, 2), [0, 0, 1], [0, 1, 1])

    assert same == DIAGONAL and hash(same) == hash(DIAGONAL) and other != DIAGONAL
    assert pickle.loads(pickle.dumps(other)) == copy.deepcopy(other) == other
    assert repr(DIAGONAL) == "BlockLayout(2 x 2, 2 blocks, density 0.5)"


def test_a_layout_cannot_be_changed() -> None:
    rows = np.array([0, 1])
    layout = BlockLayout((2, 2), rows, [0, 1])
    rows[0] = 1
    assert layout == DIAGONAL
    with pytest.raises(ValueError, match="read-only"):
        layout.rows[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        layout.shape = (3, 3)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("shape", "rows", "columns", "message"),
    [
        ((2, 2), [0, 1, 1], [0, 1, 1], "row 1, column 1 is given twice"),
        ((2, 2), [0, 2], [0, 1], "block 1: row 2, column 1 is out of range"),
        ((2, 2), [0, 1], [0, -1], "block 1: row 1, column -1 is out of range"),
        ((2, 2), [1, 0], [0, 1], "row 0, column 1 comes after row 1, column 0"),
        ((2, 2), [0, 0, 1], [1, 0, 1], "row 0, column 0 comes after row 0, column 1"),
        ((3, 2), [0, 2], [0, 1], r"row 1 has no block \(1 of 3 such rows\)"),
        ((2, 3), [0, 1], [0, 1], r"column 2 has no block \(1 of 3 such columns\)"),
        ((2, 2), [0, 1], [0], "received 2 and 1"),
        ((2, 2), [0.0, 1.0], [0, 1], "rows: received float64"),
        ((2, 2), [0, 1], [[0, 1]], "columns: received int64 of shape"),
        ((2, 0), [], [], "two positive integers"),
        ((2, 2, 2), [0, 1], [0, 1], "two positive integers"),
        ((2.0, 2), [0, 1], [0, 1], "two positive integers"),
    ],
)
def test_a_bad_layout_is_an_error_that_names_the_row(
    shape: tuple[int, int], rows: list[int], columns: list[int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        BlockLayout(shape, rows, columns)


def test_a_mask_has_two_dimensions() -> None:
    with pytest.raises(ConfigError, match="mask"):
        BlockLayout.from_mask(np.ones(3))
