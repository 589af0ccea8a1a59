"""Kernels are run both ways: sound ones raise no alarm, wrong ones do."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.eligibility.kernels import is_exact, needs_check
from tests.wrong_kernels import PROGRAMS, Program, filter_gradient, input_gradient
from tf_amp.compare.known_kernels import fault_in

DTYPES = ("bfloat16", "float16")


def fused(activation: str):
    """Return a convolution as TensorFlow fuses it with a bias and an activation."""

    attrs = f"""
        attr {{ key: "T" value {{ type: DT_FLOAT }} }}
        attr {{ key: "TArgs" value {{ list {{ type: DT_FLOAT }} }} }}
        attr {{ key: "num_args" value {{ i: 1 }} }}
        attr {{ key: "num_host_args" value {{ i: 0 }} }}
        attr {{ key: "strides" value {{ list {{ i: 1 i: 1 i: 1 i: 1 }} }} }}
        attr {{ key: "padding" value {{ s: "SAME" }} }}
        attr {{ key: "fused_ops"
                value {{ list {{ s: "BiasAdd" s: "{activation}" }} }} }}
    """
    node = text_format.Parse(attrs, NodeDef())

    def call(x, w, bias):
        graph = tf.compat.v1.get_default_graph()
        attrs = dict(node.attr)
        op = graph.create_op("_FusedConv2D", [x, w, bias], None, name="f", attrs=attrs)
        return op.outputs[0]

    return call


IMAGES, WINDOWS = (4, 9, 9, 16), (3, 3, 16, 32)
SOUND = {
    "forward": Program(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), (IMAGES, WINDOWS)),
    "filter": Program(
        filter_gradient([3, 3, 16, 32], 1, padding="SAME"), (IMAGES, (4, 9, 9, 32))
    ),
    "input": Program(
        input_gradient([4, 9, 9, 16], padding="SAME"), (WINDOWS, (4, 9, 9, 32))
    ),
    "depthwise": Program(
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"),
        (IMAGES, (3, 3, 16, 1)),
    ),
    "3-D": Program(
        lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"),
        ((2, 5, 6, 6, 4), (3, 3, 3, 4, 8)),
    ),
    "broadcast": Program(tf.matmul, ((6, 8, 16), (16, 12))),
    "one row": Program(tf.matmul, ((6, 1, 16), (6, 16, 12))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_kernel_raises_no_alarm(name: str, dtype: str) -> None:
    program = SOUND[name]
    kernel = program.kernel(dtype, program.shapes)
    assert needs_check(kernel) and is_exact(kernel) and kernel.is_whole
    assert fault_in(kernel) == ""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["Relu", "Relu6", "LeakyRelu", "Elu"])
def test_what_is_fused_behind_one_raises_no_alarm(activation: str, dtype: str) -> None:
    program = Program(fused(activation), (IMAGES, WINDOWS, (32,)))
    kernel = program.kernel(dtype, program.shapes)
    assert is_exact(kernel) == (activation != "Elu")
    assert fault_in(kernel) == ""


def test_sums_in_16_bits_are_found_on_every_cpu() -> None:
    # In float16 a CPU of small caches adds sums of blocks, each of which is exact.
    program = PROGRAMS["F"]
    assert "of 4 off" in fault_in(program.kernel("bfloat16", program.shapes))


def test_overflows_are_as_infinite_as_they_should_be() -> None:
    program = Program(
        lambda x, w: tf.nn.conv2d(x, w, 1, "VALID"),
        ((2, 1, 1, 70000), (1, 1, 70000, 4)),
    )
    assert fault_in(program.kernel("float16", program.shapes)) == ""


def test_a_product_of_ordinary_matrices_is_not_run() -> None:
    program = Program(tf.matmul, ((6, 8, 16), (6, 16, 12)))
    assert not needs_check(program.kernel("bfloat16", program.shapes))


def test_a_kernel_of_shapes_that_it_refuses_is_not_run() -> None:
    program = SOUND["forward"]
    kernel = program.kernel("bfloat16", program.shapes)
    scalar = kernel.operands[0]._replace(shape=())
    wrong = dataclasses.replace(kernel, operands=(scalar, *kernel.operands[1:]))
    with pytest.raises(ValueError, match="rank"):
        fault_in(wrong)
