"""Fused ops in float16 on a CPU, where TensorFlow registers kernels that fail.

Their parts run, so the fused node is split; what has no parts stays float32.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from grappler_pass.eligibility.known_wrong import has_kernel
from tests.fresh_process import output_of
from tests.onednn import needs_onednn
from tests.text_graph import graph_from_text

PROGRAM = """
import numpy as np

tf_amp.enable("float16", opt_level="O2", strict=True)
draw = tf.random.Generator.from_seed(1).normal
image, bias = draw((2, 12, 12, 4)), draw((4,))
kernel, deep = draw((3, 3, 4, 4)) / 6, draw((3, 3, 4, 1)) / 3
solid = draw((2, 2, 2, 4, 4)) / 6

def net(x):
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
    x = tf.nn.conv3d(x[:, None], solid, [1] * 5, "SAME")
    x = tf.nn.relu(tf.nn.bias_add(x, bias))[:, 0]
    return tf.nn.bias_add(tf.nn.depthwise_conv2d(x, deep, [1] * 4, "SAME"), bias)

error = np.abs(tf.function(net)(image) - net(image)).max()
low = [row.op for plan in tf_amp.plans() for row in plan.decisions if row.is_low]
kinds = {kind for op in low for kind in ("Conv2D", "Conv3D") if kind in op}
print(bool(0 < error < 0.05), sorted(kinds))
"""


@pytest.mark.parametrize(
    ("line", "dtype", "runs"),
    [
        ("_FusedConv2D(x, w) strides=1,1,1,1", "half", False),
        ("_FusedConv2D(x, w) strides=1,1,1,1", "float32", True),
        ("_FusedMatMul(x, w)", "half", False),
        ("MatMul(x, w)", "half", True),
        ("Conv2D(x, w) strides=1,1,1,1", "half", True),
        ("Conv2D(x, w) strides=1,1,1,1 data_format=NCHW", "half", False),
        ("Conv2D(x, w) strides=1,1,1,1 dilations=1,2,2,1", "half", False),
    ],
)
def test_on_every_cpu_only_plain_ops_have_a_float16_kernel(
    line: str, dtype: str, runs: bool
) -> None:
    (node,) = graph_from_text(f"node = {line}").node
    types = (("T", tf.as_dtype(dtype).as_datatype_enum),)
    assert has_kernel(node.op, node, types, "CPU") is runs


def test_a_fused_convolution_runs_in_float16_as_its_parts() -> None:
    assert output_of(PROGRAM) == ["True ['Conv2D', 'Conv3D']"]


GELU = """
import numpy as np

tf_amp.enable("float16", opt_level="O2", strict=True)
draw = tf.random.Generator.from_seed(1).normal
x, w, b = draw((64, 32)), draw((32, 32)) / 6, draw((32,))

def net(x):
    for approximate in (False, True):
        x = tf.nn.gelu(tf.nn.bias_add(x @ w, b), approximate)
    y, z = x @ w, x @ w / 2
    x = y * tf.sigmoid(y) + tf.nn.relu(z) * tf.sigmoid(tf.nn.relu(z)) @ w
    return tf.reduce_sum(x, 1)

print(bool(np.abs(tf.function(net)(x) - net(x)).max() < 0.5))
"""


def test_what_is_fused_with_gelu_or_into_swish_runs_in_float16_or_not_at_all() -> None:
    assert output_of(GELU) == ["True"]


PARTICULAR = """
import numpy as np

tf_amp.enable("float16", opt_level="O3", strict=True, loss_scale="none")
draw = tf.random.Generator.from_seed(1).normal
x, kernel, deep = draw((2, 12, 12, 8)), draw((3, 3, 8, 8)) / 9, draw((3, 3, 8, 1)) / 3
grouped, image = draw((3, 3, 2, 8)) / 5, draw((2, 8, 12, 12))

def gradient(convolve, *args):
    with tf.GradientTape() as tape:
        tape.watch(args)
        y = convolve(*args)
    return tf.concat([tf.reshape(d, [-1]) for d in (y, *tape.gradient(y, args))], 0)

CASES = {
    "dilated": lambda: gradient(lambda a, b: tf.nn.conv2d(a, b, 1, "SAME",
        dilations=2), x, kernel),
    "grouped": lambda: gradient(lambda a, b: tf.nn.conv2d(a, b, 1, "SAME"), x, grouped),
    "channels first": lambda: gradient(lambda a, b: tf.nn.conv2d(a, b, 1, "SAME",
        data_format="NCHW"), image, kernel),
    "depthwise": lambda: gradient(lambda a, b: tf.nn.depthwise_conv2d(a, b,
        [1, 1, 1, 1], "SAME", dilations=[2, 2]), x, deep),
}
for name, case in CASES.items():
    exact = case()
    error = np.abs(tf.function(case)() - exact).max() / np.abs(exact).max()
    print(name, bool(error < 0.01))
"""


# Without it float32 kernels refuse them, too.
@needs_onednn
def test_convolutions_that_float16_kernels_of_a_cpu_refuse_still_run() -> None:
    assert output_of(PARTICULAR) == [
        "dilated True",
        "grouped True",
        "channels first True",
        "depthwise True",
    ]


BIASED = """
import numpy as np
from tensorflow.python.eager import context

draw = tf.random.Generator.from_seed(1).normal
x, w, b = draw((8, 4, 32)), draw((32, 32)) / 6, draw((32,))

def net(x):
    x = tf.nn.relu(tf.nn.bias_add(tf.tensordot(x, w, 1), b))
    x = tf.reshape(x, [32, 32])
    for activate in (tf.nn.relu, tf.tanh, tf.identity):
        x = activate(tf.nn.bias_add(x @ w, b))
    return tf.reduce_sum(x, 1)

context.enable_run_metadata()
for level in ("O2", "O3"):
    tf_amp.enable("float16", opt_level=level, strict=True)
    fn = tf.function(net)
    error = np.abs(fn(x) - net(x)).max()
    nodes = [n for g in context.export_run_metadata().partition_graphs for n in g.node]
    half = [n.op for n in nodes if "MatMul" in n.op and n.attr["T"].type == 19]
    print(level, bool(0 < error < 0.1), len(half), [op for op in half if "Fused" in op])
"""


def test_no_bias_is_fused_behind_a_product_in_float16() -> None:
    """For oneDNN has only a reference kernel, which takes hundreds of times as long."""
    assert output_of(BIASED) == ["O2 True 4 []", "O3 True 4 []"]
