"""Block-sparse products against dense ones with masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import tf_amp
from tests.tolerance import EPSILON
from tf_amp import ConfigError
from tf_amp.block_sparse import (
    BlockLayout,
    barabasi_albert_layout,
    block_sparse_matmul,
    random_layout,
)

MASKS = arrays.arrays(bool, st.tuples(st.integers(1, 5), st.integers(1, 5))).filter(
    lambda mask: bool(mask.any(0).all() and mask.any(1).all())
)
# Rows and columns with one to five blocks each.
UNEVEN = BlockLayout.from_mask(np.tri(5, 6, 1)[::-1])


def dense_form(blocks: tf.Tensor, layout: BlockLayout) -> tf.Tensor:
    """Return the matrix with zeros between the blocks."""
    rows, columns = layout.shape
    size = blocks.shape[1]
    places = np.stack((layout.rows, layout.columns), 1)
    spread = tf.scatter_nd(places, blocks, (rows, columns, size, size))
    return tf.reshape(tf.transpose(spread, (0, 2, 1, 3)), (rows * size, columns * size))


def dense_product(x: tf.Tensor, blocks: tf.Tensor, layout: BlockLayout) -> tf.Tensor:
    return tf.tensordot(x, dense_form(blocks, layout), 1)


def operands(layout: BlockLayout, size: int, *batch: int) -> list[tf.Tensor]:
    shapes = (*batch, layout.shape[0] * size), (len(layout), size, size)
    return [
        tf.random.stateless_normal(shape, (3, i), dtype=tf.float64)
        for i, shape in enumerate(shapes)
    ]


def gradients(product: Callable[..., tf.Tensor], *given: Any) -> list[tf.Tensor]:
    """Return a product, its gradients, and those of a penalty on them."""
    *sources, layout = given
    with tf.GradientTape() as outer:
        outer.watch(sources)
        with tf.GradientTape() as inner:
            inner.watch(sources)
            result = product(*sources, layout)
            loss = tf.reduce_sum(tf.sin(result))
        first = inner.gradient(loss, sources)
        penalty = tf.add_n([tf.reduce_sum(each**3) for each in first])
    return [result, *first, *outer.gradient(penalty, sources)]


def assert_alike(found: list[tf.Tensor], expected: list[tf.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, tf.Tensor), "a gradient is no IndexedSlices"
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@settings(max_examples=15)
@given(MASKS, st.integers(1, 3), st.integers(1, 4))
def test_products_and_gradients_of_both_orders_are_the_dense_ones(
    mask: np.ndarray, size: int, batch: int
) -> None:
    layout = BlockLayout.from_mask(mask)
    given = (*operands(layout, size, batch), layout)
    assert_alike(
        gradients(block_sparse_matmul, *given), gradients(dense_product, *given)
    )


@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3), (0,)])
def test_all_dimensions_but_the_last_are_the_batch(batch: tuple[int, ...]) -> None:
    x, blocks = operands(UNEVEN, 2, *batch)
    found = block_sparse_matmul(x, blocks, UNEVEN)
    assert found.shape == (*batch, 12)
    np.testing.assert_allclose(found, dense_product(x, blocks, UNEVEN))


def test_a_function_for_any_batch_knows_the_outputs_and_is_the_dense_one() -> None:
    x, blocks = operands(UNEVEN, 2, 2, 3)
    spec = tf.TensorSpec((None, None, 10), tf.float64)
    function = tf.function(lambda x: block_sparse_matmul(x, blocks, UNEVEN))
    concrete = function.get_concrete_function(spec)
    assert concrete.output_shapes.as_list() == [None, None, 12]
    np.testing.assert_allclose(function(x), dense_product(x, blocks, UNEVEN))


def test_nothing_in_a_step_is_dense_or_scattered() -> None:
    layout = random_layout((16, 16), 0.1)
    given = (*operands(layout, 2, 3), layout)
    step = tf.function(lambda *a: gradients(block_sparse_matmul, *a, layout))
    graph = step.get_concrete_function(*given[:2]).graph
    sizes = [
        out.shape.num_elements() or 0
        for op in graph.get_operations()
        for out in op.outputs
    ]
    # The blocks are a tenth of the dense matrix.
    assert max(sizes) < 32 * 32 / 2
    kinds = {op.type for op in graph.get_operations()}
    assert not [kind for kind in kinds if "Segment" in kind or "Scatter" in kind]


def test_compiled_by_xla_the_numbers_are_the_same() -> None:
    given = operands(UNEVEN, 2, 3)
    # The penalty's gradients take most of the time to compile.
    step = tf.function(
        lambda *a: gradients(block_sparse_matmul, *a, UNEVEN)[:3], jit_compile=True
    )
    assert_alike(step(*given), gradients(block_sparse_matmul, *given, UNEVEN)[:3])


@pytest.mark.parametrize("dtype", EPSILON)
def test_the_type_is_that_of_the_operands(dtype: str) -> None:
    x, blocks = (tf.cast(each, dtype) for each in operands(UNEVEN, 2, 3))
    found = block_sparse_matmul(x, blocks, UNEVEN)
    assert found.dtype == dtype
    exact = dense_product(tf.cast(x, "float64"), tf.cast(blocks, "float64"), UNEVEN)
    # Sums of ten products at most, rounded once.
    tolerance = 10 * EPSILON[dtype]
    np.testing.assert_allclose(tf.cast(found, "float64"), exact, atol=tolerance)


@pytest.mark.parametrize("make", [random_layout, barabasi_albert_layout])
def test_the_pass_takes_the_batched_products_to_16_bits(
    make: Callable[..., BlockLayout], disabled_afterwards: None
) -> None:
    layout = make((16, 16), 0.25 if make is random_layout else 2)
    tf_amp.enable(device_profile="cpu-avx512-bf16")

    def loss_and_gradients(x: tf.Tensor, blocks: tf.Tensor) -> list[tf.Tensor]:
        y = block_sparse_matmul(x, blocks, layout)
        return [*tf.gradients(tf.reduce_sum(y), [x, blocks])]

    plan = tf_amp.explain(
        tf.function(loss_and_gradients),
        tf.TensorSpec((256, 1024)),
        tf.TensorSpec((len(layout), 64, 64)),
    )
    products = [row for row in plan.decisions if row.op == "BatchMatMulV2"]
    assert products and sum(row.is_low for row in products) >= len(products) / 2
    assert plan.seconds_after < plan.seconds_before


def test_blocks_that_do_not_fit_are_an_error_that_names_the_row() -> None:
    x, blocks = operands(UNEVEN, 2, 3)
    for width, message in (
        (7, "row 3 of blocks would have 1 of them"),
        (8, "row 4 of blocks would have none"),
        (12, "there is no row 5 of blocks for the rest"),
    ):
        with pytest.raises(ConfigError, match=message):
            block_sparse_matmul(tf.ones((3, width), tf.float64), blocks, UNEVEN)
    with pytest.raises(ConfigError, match="blocks: received the shape"):
        block_sparse_matmul(x, blocks[1:], UNEVEN)
    with pytest.raises(ConfigError, match="blocks: received the shape"):
        block_sparse_matmul(x, blocks[:, 1:], UNEVEN)
