"""A program for each row of the table of wrong kernels, on operands of small integers.

    python -m tests.wrong_kernels NAME TYPE   the relative error of TensorFlow's kernel

In types that hold the operands exactly an error above a rounding is the kernel's fault.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from grappler_pass.eligibility.kernels import Kernel, kernel_of
from grappler_pass.eligibility.known_wrong import may_be_wrong
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.type_slots import DTYPE_ENUMS, SlotTable
from grappler_pass.graph.view import Graph

Shape = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """A kernel that is wrong, and the sizes of its float operands.

    Attributes:
      call: takes the operands.
      shapes: of the operands.
      right: sizes near them at which the kernel is right.
      ones: whether all operands are ones; else integers in -2..2.
      threads: that it takes; 0: any.
    """

    call: Callable[..., Any]
    shapes: tuple[Shape, ...]
    right: tuple[Shape, ...] = ()
    ones: bool = False
    threads: int = 0

    def kernel(
        self, dtype: str, shapes: tuple[Shape, ...], device: str = "/device:CPU:0"
    ) -> Kernel:
        """Return the kernel that the pass sees at some sizes."""
        specs = [tf.TensorSpec(shape) for shape in shapes]
        graph = tf.function(self.call).get_concrete_function(*specs).graph
        graph_def = graph.as_graph_def()
        shapes_by_node = shapes_from_graph_def(graph_def)
        for node in graph_def.node:
            node.device = device
        view = Graph(graph_def)
        (node,) = (node for node in view.nodes if may_be_wrong(node.op))
        slots = SlotTable.from_view(view)
        return kernel_of(view, slots, shapes_by_node, node, DTYPE_ENUMS[dtype])

    def error(self, dtype: str) -> float:
        """Return the error of TensorFlow's kernel, relative to the result's norm."""
        if self.threads:
            tf.config.threading.set_intra_op_parallelism_threads(self.threads)
        random = np.random.default_rng(0)
        operands = [
            np.ones(shape) if self.ones else random.integers(-2, 3, shape)
            for shape in self.shapes
        ]
        right = self.call(*(tf.constant(o, tf.float32) for o in operands))
        dirt = [np.full(1 << i, 63, np.uint8) for i in list(range(9, 21)) * 3]
        del dirt
        result = self.call(*(tf.cast(tf.constant(o), dtype) for o in operands))
        off = np.asarray(tf.cast(result, tf.float64)) - np.asarray(right)
        return float(
            np.linalg.norm(np.nan_to_num(off, nan=1e9)) / np.linalg.norm(right)
        )


def _convolved(strides: Any, padding: str) -> Callable[..., Any]:
    return functools.partial(_convolve, strides=strides, padding=padding)


def _convolve(x: Any, w: Any, *, strides: Any, padding: str) -> Any:
    rank = len(x.shape)
    convolution = tf.nn.conv3d if rank == 5 else tf.nn.conv2d
    return convolution(x, w, strides, padding)


def filter_gradient(sizes: list[int], stride: int, **keys: Any) -> Callable[..., Any]:
    """Return the gradient of a convolution by its filter."""

    def call(x: Any, dy: Any) -> Any:
        return tf.raw_ops.Conv2DBackpropFilter(
            input=x,
            filter_sizes=sizes,
            out_backprop=dy,
            strides=[1, stride, stride, 1],
            **keys,
        )

    return call


def input_gradient(sizes: list[int], **keys: Any) -> Callable[..., Any]:
    """Return the gradient of a convolution of stride 1 by its image."""

    def call(w: Any, dy: Any) -> Any:
        return tf.raw_ops.Conv2DBackpropInput(
            input_sizes=sizes, filter=w, out_backprop=dy, strides=[1] * 4, **keys
        )

    return call


def _after_transposed(a: Any, b: Any) -> Any:
    """Return a product whose kernel TensorFlow takes for the one of another.

    oneDNN's cache does not tell them apart.
    """
    if tf.executing_eagerly():
        tf.matmul(tf.transpose(a, [0, 2, 1]), b, transpose_a=True)
    return tf.matmul(a, b)


def _has_its_channels(x: Any, w: Any) -> Any:
    """Return 1 where a convolution has as many channels as its filter says, else 0."""
    y = tf.nn.conv3d(x, w, [1] * 5, "SAME")
    if x.dtype == tf.float32:
        return tf.ones([1])
    return tf.cast(tf.shape(y)[-1:] == w.shape[-1:], x.dtype)


_UNPADDED = {"padding": "EXPLICIT", "explicit_paddings": [0] * 8}

# By the name of a row, and what it computes where rows share it.
PROGRAMS = {
    "A1": Program(
        _convolved([1, 2], "VALID"),
        ((8, 16, 4, 3), (2, 4, 3, 8)),
        ((8, 16, 6, 3), (2, 4, 3, 8)),
    ),
    "A2": Program(
        _convolved(4, "VALID"),
        ((2, 32, 32, 24), (4, 4, 24, 16)),
        ((2, 32, 32, 23), (4, 4, 23, 16)),
    ),
    "A3": Program(
        _convolved([1] * 5, "SAME"),
        ((2, 1, 8, 8, 16), (3, 3, 3, 16, 16)),
        ((2, 4, 8, 8, 16), (3, 3, 3, 16, 16)),
    ),
    "A4": Program(
        _convolved([2, 4], "VALID"),
        ((2, 3, 4, 24), (3, 4, 24, 7)),
        ((2, 3, 8, 24), (3, 4, 24, 7)),
    ),
    "A4 of 64": Program(
        _convolved(4, "VALID"),
        ((64, 4, 4, 16), (4, 4, 16, 8)),
        ((64, 4, 4, 8), (4, 4, 8, 8)),
    ),
    "A5": Program(
        _convolved([1, 2], "VALID"),
        ((8, 16, 4, 1), (2, 4, 1, 8)),
        ((8, 16, 4, 2), (2, 4, 2, 8)),
    ),
    "A6": Program(
        _convolved([1] * 5, "SAME"),
        ((2, 1, 8, 8, 1), (3, 3, 3, 1, 16)),
        ((2, 1, 8, 8, 2), (3, 3, 3, 2, 16)),
    ),
    "B": Program(
        filter_gradient([3, 3, 64, 64], 2, padding="SAME"),
        ((8, 1, 1, 64), (8, 1, 1, 64)),
        ((8, 4, 4, 64), (8, 2, 2, 64)),
    ),
    "C": Program(
        _convolved(1, "VALID"),
        ((2, 7, 1, 40), (7, 1, 40, 8)),
        ((2, 7, 1, 48), (7, 1, 48, 8)),
    ),
    "C gradient": Program(
        input_gradient([2, 7, 1, 8], padding="SAME"),
        ((3, 1, 8, 40), (2, 7, 1, 40)),
        ((3, 1, 8, 32), (2, 7, 1, 32)),
    ),
    "D1": Program(
        lambda a, b: tf.matmul(a, b, transpose_a=True),
        ((5, 11, 1), (11, 40)),
        ((5, 11, 2), (11, 40)),
    ),
    "D1 of rows": Program(
        _after_transposed,
        ((5, 1, 11), (11, 40)),
        ((5, 2, 11), (11, 40)),
    ),
    "D2": Program(
        lambda a, b: tf.matmul(a, b),
        ((3, 1, 8, 8), (8, 8)),
        ((3, 2, 8, 8), (8, 8)),
    ),
    "D3": Program(
        lambda a, b: tf.matmul(a, b, transpose_b=True),
        ((1, 1, 8, 64), (1, 1, 56, 64)),
        ((1, 1, 8, 64), (1, 1, 64, 64)),
    ),
    "D3 of letters": Program(
        lambda a, b: tf.einsum("bmhd,bnhd->bhmn", a, b),
        ((1, 8, 1, 64), (1, 56, 1, 64)),
        ((1, 8, 2, 64), (1, 56, 2, 64)),
    ),
    "D3 of heads": Program(
        lambda a, b: tf.matmul(a, b, transpose_b=True),
        ((2, 3, 5, 64), (56, 64)),
        ((2, 3, 5, 64), (64, 64)),
    ),
    "F": Program(
        filter_gradient([1, 1, 2, 2], 1, **_UNPADDED),
        ((14, 21, 21, 2), (14, 21, 21, 2)),
        ones=True,
    ),
    "F gradient": Program(
        input_gradient([2, 4, 4, 1], **_UNPADDED),
        ((3, 3, 1, 512), (2, 2, 2, 512)),
        ones=True,
    ),
    "F2": Program(
        filter_gradient([1, 1, 2, 2], 1, padding="SAME"),
        ((14, 21, 21, 2), (14, 21, 21, 2)),
        ones=True,
    ),
    "F2 of 3-D": Program(
        _convolved([1] * 5, "VALID"),
        ((1, 3, 3, 3, 512), (3, 3, 3, 512, 2)),
        ones=True,
    ),
    "G": Program(
        lambda g: tf.raw_ops.BiasAddGrad(out_backprop=g), ((16434, 3),), ones=True
    ),
    "G sums": Program(
        lambda x: tf.raw_ops.Cumsum(x=x, axis=0), ((16434, 3),), ones=True
    ),
    "G mean": Program(
        lambda x: tf.reduce_mean(x, 0), ((16434, 3),), ((2000, 3),), ones=True
    ),
    "M": Program(
        _convolved(1, [[0, 0], [0, 0], [0, 1], [0, 0]]),
        ((1, 1, 1, 3), (1, 1, 3, 4)),
        ((1, 1, 1, 3), (1, 2, 3, 4)),
        threads=32,
    ),
    "N": Program(
        _has_its_channels,
        ((0, 4, 4, 4, 3), (3, 3, 3, 3, 8)),
        ((2, 4, 4, 4, 3), (3, 3, 3, 3, 8)),
    ),
    "H": Program(
        filter_gradient([1, 1, 16, 96], 1, padding="SAME"),
        ((4, 8, 8, 16), (4, 8, 8, 96)),
        ((64, 8, 8, 16), (64, 8, 8, 96)),
        ones=True,
        threads=32,
    ),
}


def main(name: str, dtype: str) -> None:
    """Print the relative error of one program."""
    print(PROGRAMS[name].error(dtype))


if __name__ == "__main__":
    main(*sys.argv[1:3])
