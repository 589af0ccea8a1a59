"""Layouts are checked, immutable values, and have the form they are named for."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tf_amp import ConfigError
from tf_amp.block_sparse import (
    BlockLayout,
    banded_layout,
    barabasi_albert_layout,
    butterfly_layout,
    random_layout,
)

DIAGONAL = BlockLayout((2, 2), [0, 1], [0, 1])
SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 12))


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


@settings(max_examples=60)
@given(SHAPES, st.floats(0.01, 1.0), st.integers(0, 9))
def test_random_layouts_are_spread_evenly(
    shape: tuple[int, int], density: float, seed: int
) -> None:
    layout = random_layout(shape, density, seed=seed)

    assert len(layout) == max(round(density * shape[0] * shape[1]), *shape)
    for indices in (layout.rows, layout.columns):
        assert np.ptp(np.bincount(indices)) <= 1


def test_random_layouts_are_those_of_their_seed() -> None:
    layout = random_layout((8, 8), 0.3, seed=1)
    assert layout == random_layout((8, 8), 0.3, seed=1)
    assert layout != random_layout((8, 8), 0.3, seed=2)


def test_every_place_of_a_random_layout_is_as_likely() -> None:
    draws = [random_layout((6, 4), 0.5, seed=seed).mask() for seed in range(400)]
    # Five standard deviations of a share of 400.
    assert np.abs(np.mean(draws, 0) - 0.5).max() < 5 * 0.5 / 400**0.5


@given(SHAPES, st.integers(1, 12))
def test_layouts_of_any_shape_read_all_and_write_all(
    shape: tuple[int, int], width: int
) -> None:
    assert banded_layout(shape, width).shape == shape
    assert butterfly_layout(shape).shape == shape
    if width < max(shape):
        assert barabasi_albert_layout(shape, width).shape == shape


def test_a_band_lies_along_the_diagonal() -> None:
    distances = np.abs(np.subtract.outer(np.arange(6), np.arange(6)))
    assert (banded_layout((6, 6), 2).mask() == (distances <= 2)).all()
    assert (banded_layout((6, 6), 0).mask() == np.eye(6)).all()


def test_a_butterfly_joins_numbers_that_differ_in_one_digit() -> None:
    mask = butterfly_layout((8, 8)).mask()
    assert np.flatnonzero(mask[5]).tolist() == [1, 4, 5, 7]
    assert (mask.sum(0) == 4).all()
    # As many layers as there are digits reach everything.
    assert (np.linalg.matrix_power(mask.astype(int), 3) > 0).all()
    near = butterfly_layout((8, 8), max_stride=2).mask()
    assert np.flatnonzero(near[5]).tolist() == [4, 5, 7]


def test_a_scale_free_graph_has_hubs() -> None:
    layout = barabasi_albert_layout((64, 64), 2)
    mask = layout.mask()

    assert (mask == mask.T).all() and mask.diagonal().all()
    # A star of three nodes, then two edges for each other node.
    assert len(layout) == 64 + 2 * (2 + 2 * 61)
    counts = mask.sum(0)
    assert counts.max() > 4 * np.median(counts) and counts.min() >= 2
    assert layout == barabasi_albert_layout((64, 64), 2)
    assert layout != barabasi_albert_layout((64, 64), 2, seed=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: random_layout((4, 4), 0.0), "density"),
        (lambda: random_layout((4, 4), 1.5), "density"),
        (lambda: random_layout((4, 0), 0.5), "shape"),
        (lambda: banded_layout((4, 4), -1), "bandwidth"),
        (lambda: barabasi_albert_layout((4, 4), 0), "attachments"),
        (lambda: barabasi_albert_layout((4, 3), 4), "fewer than the longer side"),
        (lambda: butterfly_layout((4, 4), 0), "max_stride"),
    ],
)
def test_what_has_no_such_form_is_an_error(
    make: Callable[[], BlockLayout], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
