"""Cast rules over every 16-bit value, and what conversions a coloring needs."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from grappler_pass.eligibility.existing_casts import represents

DTYPES = {
    types_pb2.DT_HALF: np.dtype(np.float16),
    types_pb2.DT_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    types_pb2.DT_FLOAT: np.dtype(np.float32),
    types_pb2.DT_DOUBLE: np.dtype(np.float64),
    types_pb2.DT_INT8: np.dtype(np.int8),
    types_pb2.DT_UINT8: np.dtype(np.uint8),
    types_pb2.DT_INT16: np.dtype(np.int16),
    types_pb2.DT_UINT16: np.dtype(np.uint16),
    types_pb2.DT_BOOL: np.dtype(np.bool_),
}
SMALL = [d for d, numpy_dtype in DTYPES.items() if numpy_dtype.itemsize <= 2]


def every_value(dtype: int) -> np.ndarray:
    numpy_dtype = DTYPES[dtype]
    if numpy_dtype == np.bool_:
        return np.array([False, True])
    width = {1: np.uint8, 2: np.uint16}[numpy_dtype.itemsize]
    return np.arange(256**numpy_dtype.itemsize).astype(width).view(numpy_dtype)


def survives(value: np.ndarray, through: np.dtype) -> np.ndarray:
    """Tell per value whether a cast there and back gives it again."""
    with np.errstate(all="ignore"):
        back = value.astype(through).astype(value.dtype)
    if value.dtype.kind in "iub":
        # numpy wraps integers around; what left the range did not survive.
        wide = value.astype(np.float64)
        with np.errstate(all="ignore"):
            return value.astype(through).astype(np.float64) == wide
    with np.errstate(invalid="ignore"):
        return (back == value) | (np.isnan(value) & np.isnan(back))


@pytest.mark.parametrize(
    ("wide", "narrow"), list(itertools.product(DTYPES, SMALL)), ids=str
)
def test_represents_agrees_with_every_small_value(wide: int, narrow: int) -> None:
    if DTYPES[wide].kind in "iub" and DTYPES[narrow].kind not in "iub":
        assert not represents(wide, narrow)
        return
    holds = bool(survives(every_value(narrow), DTYPES[wide]).all())
    assert represents(wide, narrow) == holds


def test_float32_holds_both_16_bit_floats_and_neither_holds_the_other() -> None:
    half, brain, single = (
        types_pb2.DT_HALF,
        types_pb2.DT_BFLOAT16,
        types_pb2.DT_FLOAT,
    )
    assert represents(single, half) and represents(single, brain)
    assert not represents(half, single) and not represents(brain, single)
    assert not represents(half, brain) and not represents(brain, half)


def test_int32_through_float32_is_not_fused() -> None:
    assert not represents(types_pb2.DT_FLOAT, types_pb2.DT_INT32)


@pytest.mark.parametrize("given", [types_pb2.DT_HALF, types_pb2.DT_BFLOAT16])
@pytest.mark.parametrize("target", [types_pb2.DT_HALF, types_pb2.DT_BFLOAT16])
def test_tensorflow_rounds_a_fused_chain_as_the_chain(given: int, target: int) -> None:
    """A -> float32 -> C equals A -> C for every 16-bit float A; A is C: identity."""
    value = tf.constant(every_value(given))
    chained = tf.cast(tf.cast(value, tf.float32), target)
    fused = value if given == target else tf.cast(value, target)
    np.testing.assert_array_equal(
        tf.cast(chained, tf.float32).numpy(), tf.cast(fused, tf.float32).numpy()
    )


def test_an_unknown_type_holds_only_itself() -> None:
    quantized = types_pb2.DT_QINT8
    assert represents(quantized, quantized)
    assert not represents(types_pb2.DT_FLOAT, quantized)
