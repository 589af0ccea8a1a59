"""The sweep of kernels finds what is planted, and lets pass what is right."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests import kernel_calls, kernel_check
from tests.kernel_calls import KernelCase, parsed
from tests.kernel_check import Right
from tests.kernel_draws import directed, draw

_CONVOLUTION = parsed(
    "Conv2D(input:2x5x6x3, filter:3x2x3x4, strides=[1,1,2,1], padding='SAME') [eager]"
)
# Of kernels that were found wrong nowhere.
_SOUND = {"MatMul", "AddV2", "Mul", "BiasAdd", "Relu", "MaxPool", "Tanh", "Softmax"}


def _right(case: KernelCase) -> Right:
    operands = kernel_calls.operands_of(case, "integers")
    right = kernel_check.right_results(case, operands)
    assert right is not None
    return right


def _found(right: Right, wrong: np.ndarray) -> bool:
    """Return whether a result in bfloat16 is called wrong."""
    return bool(right.faults("bfloat16", "integers", [tf.cast(wrong, "bfloat16")]))


@pytest.mark.parametrize("drawn", [draw, directed])
def test_a_case_is_read_back_from_the_line_that_it_prints(drawn) -> None:
    cases = [drawn(seed) for seed in range(200)]
    assert [parsed(str(case)) for case in cases] == cases
    assert [drawn(seed) for seed in range(200)] == cases
    assert len({case.op for case in cases}) > 10


def test_what_is_no_case_is_refused_with_an_example() -> None:
    with pytest.raises(ValueError, match=r"looks like Relu\(features:2x3\) > Tanh"):
        parsed("Relu of something")


def test_one_element_that_is_two_roundings_off_is_found() -> None:
    right = _right(_CONVOLUTION)
    (result,) = right.results
    place = np.unravel_index(np.abs(result).argmax(), result.shape)
    rounding = 2.0 ** (np.floor(np.log2(abs(result[place]))) - 7)
    wrong = result.copy()
    assert not _found(right, wrong)
    wrong[place] += rounding
    assert not _found(right, wrong)
    wrong[place] += rounding
    assert _found(right, wrong)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e-3])
def test_one_element_that_memory_held_is_found(value: float) -> None:
    right = _right(_CONVOLUTION)
    (result,) = right.results
    wrong = result.copy()
    wrong[tuple(np.argwhere(result == 0)[0])] = value
    assert _found(right, wrong)


def test_what_float16_cannot_hold_is_to_be_infinite() -> None:
    case = parsed("Sum(input:300x300, axis=[0,1]) [eager]")
    right = kernel_check.right_results(case, {"input": np.ones((300, 300))})
    assert right is not None
    for value, wrong in ((np.inf, False), (65504.0, True), (np.nan, True)):
        got = tf.constant(value, "float16")
        assert bool(right.faults("float16", "ones", [got])) is wrong


def test_one_wrong_channel_of_what_is_inexact_is_found() -> None:
    case = dataclasses.replace(_CONVOLUTION, then=("Tanh",), mode="fused")
    right = _right(case)
    (result,) = right.results
    assert not right.exact
    assert not _found(right, result * 1.01)
    wrong = result.copy()
    wrong[..., 1] = 0
    assert _found(right, wrong)


def test_sound_kernels_are_called_right() -> None:
    cases = [case for seed in range(80) if (case := draw(seed)).op in _SOUND]
    assert len(cases) > 8
    wrong = {str(case): faults for case in cases if (faults := _faults(case))}
    assert not wrong


def _faults(case: KernelCase) -> list[str]:
    return [str(fault) for fault in kernel_check.faults_of(case) or ()]


_CONVOLUTIONS = (
    "Conv2D(input:2x5x6x4, filter:3x2x2x6, strides=[1,1,2,1], padding='SAME')",
    "Conv2D(input:2x7x6x3, filter:2x3x3x4, strides=[1,1,1,1], "
    "dilations=[1,2,2,1], padding='VALID')",
    "Conv2D(input:2x5x5x3, filter:3x3x3x4, strides=[1,2,1,1], "
    "padding='EXPLICIT', explicit_paddings=[0,0,1,2,0,1,0,0])",
    "Conv3D(input:1x3x4x5x2, filter:2x3x2x2x3, strides=[1,1,2,1,1], padding='SAME')",
    "DepthwiseConv2dNative(input:2x5x6x3, filter:3x2x3x2, strides=[1,2,2,1], "
    "padding='SAME')",
    "Conv2DBackpropInput(filter:3x2x3x4, out_backprop:2x3x3x4, "
    "input_sizes=[2,5,6,3], strides=[1,2,2,1], padding='SAME')",
    "Conv3DBackpropInputV2(filter:2x2x2x2x3, out_backprop:1x2x3x4x3, "
    "input_sizes=[1,3,4,5,2], strides=[1,1,1,1,1], padding='VALID')",
    "DepthwiseConv2dNativeBackpropInput(filter:3x2x3x2, out_backprop:2x3x3x6, "
    "input_sizes=[2,5,6,3], strides=[1,2,2,1], padding='SAME')",
    "Conv2DBackpropFilter(input:2x5x6x4, out_backprop:2x3x3x6, "
    "filter_sizes=[3,2,4,6], strides=[1,2,2,1], padding='SAME')",
    "Conv2DBackpropFilter(input:2x5x6x4, out_backprop:2x3x3x6, "
    "filter_sizes=[3,2,2,6], strides=[1,2,2,1], padding='SAME')",
    "Conv2DBackpropInput(filter:3x2x2x6, out_backprop:2x3x3x6, "
    "input_sizes=[2,5,6,4], strides=[1,2,2,1], padding='SAME')",
    "Conv3DBackpropFilterV2(input:1x3x4x5x2, out_backprop:1x2x3x4x3, "
    "filter_sizes=[2,2,2,2,3], strides=[1,1,1,1,1], padding='VALID')",
    "DepthwiseConv2dNativeBackpropFilter(input:2x5x6x3, out_backprop:2x3x3x6, "
    "filter_sizes=[3,2,3,2], strides=[1,2,2,1], padding='SAME')",
)


@pytest.mark.parametrize("line", _CONVOLUTIONS, ids=range(len(_CONVOLUTIONS)))
def test_convolutions_in_numpy_are_those_of_tensorflow_in_float32(line: str) -> None:
    case = parsed(f"{line} [eager]")
    operands = kernel_calls.operands_of(case, "integers")
    right = _right(case)
    got = kernel_calls.values(case, kernel_calls.cast(case, operands, "float32"))[-1]
    assert np.any(right.results[0])
    np.testing.assert_array_equal(got[0], right.results[0])


def test_a_product_is_right_through_tf_amp() -> None:
    case = parsed("MatMul(a:8x16, b:16x8, bias:8) > BiasAdd > Relu [fused]")
    assert kernel_check.faults_through(case, "O2") == []
