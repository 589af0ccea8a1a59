"""Fused ops in float16 on a CPU, where TensorFlow registers kernels that fail.

Their parts run, so the fused node is split; what has no parts stays float32.
"""

from __future__ import annotations

from tensorflow.core.framework import types_pb2

from grappler_pass.type_slots import kernel_exists
from tests.fresh_process import output_of

PROGRAM = """
import numpy as np

tf_amp.enable("float16", "O2", strict=True)
draw = tf.random.Generator.from_seed(1).normal
image, bias = draw((2, 12, 12, 4)), draw((4,))
kernel, deep = draw((3, 3, 4, 4)) / 6, draw((3, 3, 4, 1)) / 3

def net(x):
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
    return tf.nn.bias_add(tf.nn.depthwise_conv2d(x, deep, [1] * 4, "SAME"), bias)

error = np.abs(tf.function(net)(image) - net(image)).max()
low = [row.op for plan in tf_amp.plans() for row in plan.decisions if row.is_low]
print(bool(0 < error < 0.05), any("Conv" in op for op in low))
"""


def test_fused_convolutions_of_a_cpu_have_no_float16_kernel() -> None:
    types = (("T", types_pb2.DT_HALF),)
    assert not kernel_exists("_FusedConv2D", types, "CPU")
    assert kernel_exists("Conv2D", types, "CPU")
    assert kernel_exists("MatMul", types, "CPU")
    assert not kernel_exists("_FusedMatMul", types, "CPU")
    assert kernel_exists("_FusedConv2D", (("T", types_pb2.DT_FLOAT),), "CPU")


def test_a_fused_convolution_runs_in_float16_as_its_parts() -> None:
    assert output_of(PROGRAM) == ["True True"]


GELU = """
import numpy as np

tf_amp.enable("float16", "O2", strict=True)
draw = tf.random.Generator.from_seed(1).normal
x, w, b = draw((64, 32)), draw((32, 32)) / 6, draw((32,))

def net(x):
    for approximate in (False, True):
        x = tf.nn.gelu(tf.nn.bias_add(x @ w, b), approximate)
    return tf.reduce_sum(x, 1)

print(bool(np.abs(tf.function(net)(x) - net(x)).max() < 0.5))
"""


def test_a_product_fused_with_gelu_runs_in_float16_or_not_at_all() -> None:
    assert output_of(GELU) == ["True"]
