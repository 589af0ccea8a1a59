"""Sizes of convolutions, and kernels whose images read channels last."""

from __future__ import annotations

import pytest
import tensorflow as tf

from grappler_pass.eligibility.kernels import Role, channels_last, convolution_of
from tests.wrong_kernels import Program


def forward(layout: str, padding):
    strides = {"NHWC": [1, 2, 3, 1], "NCHW": [1, 1, 2, 3]}[layout]
    return lambda x, w: tf.nn.conv2d(x, w, strides, padding, layout)


def gradient(layout: str, kind: str, sizes):
    call = getattr(tf.raw_ops, f"Conv2DBackprop{kind}")
    name = "input_sizes" if kind == "Input" else "filter_sizes"
    other = "filter" if kind == "Input" else "input"
    return lambda x, dy: call(
        **{name: sizes, other: x},
        out_backprop=dy,
        strides=[1] * 4,
        padding="SAME",
        data_format=layout,
    )


EXPLICIT = [[0, 0], [1, 2], [3, 4], [0, 0]]
LAST, FIRST = (2, 9, 8, 5), (2, 5, 9, 8)
WINDOW, RESULT = (3, 3, 5, 7), (2, 9, 8, 7)
PAIRS = {
    "forward": (
        Program(forward("NHWC", "SAME"), (LAST, WINDOW)),
        Program(forward("NCHW", "SAME"), (FIRST, WINDOW)),
    ),
    "explicit": (
        Program(forward("NHWC", EXPLICIT), (LAST, WINDOW)),
        Program(forward("NCHW", [EXPLICIT[i] for i in (0, 3, 1, 2)]), (FIRST, WINDOW)),
    ),
    "filter": (
        Program(gradient("NHWC", "Filter", WINDOW), (LAST, RESULT)),
        Program(gradient("NCHW", "Filter", WINDOW), (FIRST, (2, 7, 9, 8))),
    ),
    "input": (
        Program(gradient("NHWC", "Input", LAST), (WINDOW, RESULT)),
        Program(gradient("NCHW", "Input", FIRST), (WINDOW, (2, 7, 9, 8))),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_kernel_that_reads_channels_last_is_the_one_of_that_program(name) -> None:
    last, first = (p.kernel("float16", p.shapes, "/device:GPU:0") for p in PAIRS[name])
    assert first.key != last.key
    moved = channels_last(first)
    assert moved.key == channels_last(last).key == last.key
    assert moved.results == last.results
    assert convolution_of(first) == convolution_of(last)


def test_sizes_are_those_of_the_convolution_that_a_gradient_belongs_to() -> None:
    program = PAIRS["input"][0]
    sizes = convolution_of(program.kernel("bfloat16", program.shapes))
    assert sizes.role is Role.INPUT_GRADIENT
    assert (sizes.image, sizes.window, sizes.result) == ((9, 8), (3, 3), (9, 8))
    assert (sizes.batch, sizes.channels_in, sizes.channels_out) == (2, 5, 7)
    assert (sizes.padded(0), sizes.padded(1)) == (1, 1)


@pytest.mark.parametrize(
    ("size", "window", "stride", "is_blind"),
    [(1, 3, 2, True), (3, 3, 2, False), (2, 5, 1, True), (3, 5, 1, False)],
)
def test_a_place_in_the_window_that_sees_padding_only_is_seen(
    size: int, window: int, stride: int, is_blind: bool
) -> None:
    program = Program(
        lambda x, w: tf.nn.conv2d(x, w, stride, "SAME"),
        ((2, 8, size, 4), (1, window, 4, 4)),
    )
    sizes = convolution_of(program.kernel("bfloat16", program.shapes))
    assert sizes.has_blind_taps(1) == is_blind
