"""Cast rules over every 16-bit value, and what conversions a coloring needs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from grappler_pass.eligibility.reads import HELD_BY_FLOAT32

DTYPES = {
    types_pb2.DT_HALF: np.dtype(np.float16),
    types_pb2.DT_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    types_pb2.DT_INT8: np.dtype(np.int8),
    types_pb2.DT_UINT8: np.dtype(np.uint8),
    types_pb2.DT_INT16: np.dtype(np.int16),
    types_pb2.DT_UINT16: np.dtype(np.uint16),
    types_pb2.DT_BOOL: np.dtype(np.bool_),
}


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


@pytest.mark.parametrize("small", DTYPES, ids=str)
def test_float32_holds_every_value_of_a_small_type(small: int) -> None:
    assert small in HELD_BY_FLOAT32
    assert survives(every_value(small), np.dtype(np.float32)).all()


@pytest.mark.parametrize("wide", ["int32", "uint32", "int64", "uint64", "float64"])
def test_a_chain_from_a_wide_type_through_float32_is_not_fused(wide: str) -> None:
    assert tf.as_dtype(wide).as_datatype_enum not in HELD_BY_FLOAT32
    odd = np.array([2**24 + 1]).astype(wide)
    assert not survives(odd, np.dtype(np.float32)).any()


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


def test_float32_is_not_known_to_hold_what_is_quantized() -> None:
    assert types_pb2.DT_QINT8 not in HELD_BY_FLOAT32
