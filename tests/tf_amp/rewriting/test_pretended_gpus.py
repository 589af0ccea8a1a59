"""What becomes of convolutions on GPUs that are not here, through both iterations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

import tf_amp
from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec
from grappler_pass.graph.type_slots import DTYPE_NAMES
from tests.onednn import FUSES_FLOAT16
from tests.pretended_gpu import (
    A100,
    H100,
    LOW,
    P100,
    T4,
    V100,
    Gpu,
    Traced,
    fused_in,
    layout_of,
    pretended,
    results_on_cpu,
    type_of,
)
from tf_amp._tensorflow_private import graphs as private
from tf_amp.rewriting import graph_settings
from tf_amp.tracing import grappler_preview

pytestmark = pytest.mark.usefixtures("disabled_afterwards")

Tensors = Sequence[tf.Tensor]
FLOAT32 = tf.float32.as_datatype_enum
# From tensors, and the type that they are cast to by hand, to results.
Function = Callable[[tf.DType, Tensors], Tensors]


class Program(NamedTuple):
    """A function of float32 tensors of these shapes."""

    function: Function
    shapes: Sequence[Sequence[int]]

    @property
    def names(self) -> list[str]:
        """Names of its arguments."""
        return [f"x{i}" for i in range(len(self.shapes))]

    def traced(self, gpu: Gpu, dtype: tf.DType = tf.float32) -> Traced:
        """Return its graph, all of it cast to a type by hand."""
        specs = [
            tf.TensorSpec(shape, name=name)
            for name, shape in zip(self.names, self.shapes, strict=True)
        ]

        def cast_by_hand(*given: tf.Tensor) -> Tensors:
            # Grappler takes the shape of what is fed for unknown.
            known = map(tf.reshape, given, self.shapes)
            results = self.function(dtype, [tf.cast(x, dtype) for x in known])
            return [tf.cast(result, tf.float32) for result in results]

        return Traced.from_function(cast_by_hand, specs, gpu)

    def values(self) -> list[np.ndarray]:
        """Return arguments, the same each time."""
        random = np.random.default_rng(1)
        return [
            (random.normal(size=shape) / np.sqrt(np.prod(shape[:-1]))).astype("f4")
            for shape in self.shapes
        ]


def biased(dtype: tf.DType, given: Tensors) -> Tensors:
    """Return what two layers of convolutions with Relu, and a product, make."""
    x, w1, b1, depthwise, w2, b2, w3 = given
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w1, 1, "SAME"), b1))
    x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.nn.relu(tf.nn.depthwise_conv2d(x, depthwise, [1, 1, 1, 1], "SAME"))
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w2, 1, "SAME"), b2))
    return [tf.reduce_mean(x, [1, 2]) @ w3]


def normalized(dtype: tf.DType, given: Tensors, *, training: bool = True) -> Tensors:
    """Return a residual block, whose normalizations are followed by Relu."""
    x, w1, w2, scale, offset = given

    def norm(x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=tf.cast(scale, tf.float32),
            offset=tf.cast(offset, tf.float32),
            mean=tf.zeros([0] if training else [CHANNELS]),
            variance=tf.ones([0] if training else [CHANNELS]),
            is_training=training,
        ).y

    y = tf.nn.relu(norm(tf.nn.conv2d(x, w1, 1, "SAME")))
    return [tf.nn.relu(norm(tf.nn.conv2d(y, w2, 1, "SAME")) + y)]


def standardized(dtype: tf.DType, given: Tensors) -> Tensors:
    """Return what has sums over all axes but channels, joined and padded, behind it."""
    x, w1, w2, scale, offset = given
    x = tf.nn.conv2d(x, w1, 2, "SAME")
    mean = tf.reduce_mean(x, [0, 1, 2], keepdims=True)
    square = tf.reduce_mean(x * x, [0, 1, 2], keepdims=True)
    y = (x - mean) * tf.math.rsqrt(square - mean * mean + 1e-3) * scale + offset
    left, right = tf.split(tf.nn.relu(y), 2, axis=3)
    joined = tf.concat([right, left], axis=-1)
    padded = tf.pad(joined, [[0, 0], [1, 1], [2, 0], [0, 0]])
    y = tf.nn.avg_pool2d(tf.nn.conv2d(padded, w2, 1, "VALID"), 2, 2, "VALID")
    return [tf.reduce_max(y, 1), tf.reshape(y, [BATCH, -1])]


def others(dtype: tf.DType, given: Tensors) -> Tensors:
    """Return what further kinds of convolutions make."""
    x, kernel, deep, solid, bias = given
    x = tf.nn.conv2d_transpose(x, kernel, (BATCH, 24, 24, CHANNELS), 2, "SAME")
    x = tf.nn.relu(tf.nn.bias_add(x, bias))
    x = tf.nn.conv2d(x, kernel[:, :, :8], 1, "SAME")
    x = tf.nn.conv2d(x, kernel, 2, [[0, 0], [1, 0], [0, 1], [0, 0]])
    x = tf.nn.depthwise_conv2d(tf.nn.leaky_relu(x), deep, [1, 2, 2, 1], "VALID")
    volume = tf.reshape(x, (BATCH, 5, 5, 3, CHANNELS))
    volume = tf.nn.conv3d(volume, solid, [1] * 5, "SAME")
    return [tf.nn.relu(tf.nn.bias_add(volume, bias))]


def inferred(dtype: tf.DType, given: Tensors) -> Tensors:
    """Return a residual block as it is evaluated."""
    return normalized(dtype, given, training=False)


def with_gradients(function: Function) -> Function:
    """Return a function with the gradients of its results, too."""

    def step(dtype: tf.DType, given: Tensors) -> Tensors:
        with tf.GradientTape() as tape:
            tape.watch(given)
            results = function(dtype, given)
            loss = tf.reduce_sum(tf.cast(results[0], tf.float32) ** 2)
        return [loss, *tape.gradient(loss, given)]

    return step


BATCH, SIZE, CHANNELS = 4, 12, 16
IMAGES = (BATCH, SIZE, SIZE, CHANNELS)
KERNEL = (3, 3, CHANNELS, CHANNELS)
BIASED = (
    IMAGES,
    KERNEL,
    (CHANNELS,),
    (3, 3, CHANNELS, 1),
    KERNEL,
    (CHANNELS,),
    (CHANNELS, 8),
)
NORMALIZED = IMAGES, KERNEL, KERNEL, (CHANNELS,), (CHANNELS,)
OTHERS = IMAGES, KERNEL, (3, 3, CHANNELS, 3), (3, *KERNEL), (CHANNELS,)
PROGRAMS = {
    "others": Program(others, OTHERS),
    "biased": Program(biased, BIASED),
    "biased step": Program(with_gradients(biased), BIASED),
    "standardized": Program(standardized, NORMALIZED),
    "standardized step": Program(with_gradients(standardized), NORMALIZED),
    "normalized": Program(inferred, NORMALIZED),
    "normalized step": Program(with_gradients(normalized), NORMALIZED),
}
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
dtypes = pytest.mark.parametrize("dtype", LOW)
# Layouts of float32 depend on how exact it is to be, from compute capability 8.0 on.
gpus = pytest.mark.parametrize(
    ("gpu", "tf32"),
    [
        pytest.param(P100, True, id="P100"),
        pytest.param(V100, True, id="V100"),
        pytest.param(T4, True, id="T4", marks=pytest.mark.long),
        pytest.param(H100, True, id="H100"),
        pytest.param(H100, False, id="H100 exact", marks=pytest.mark.long),
    ],
)


@contextlib.contextmanager
def enabled(
    gpu: Gpu, dtype: str, *, level: str = "O2", tf32: bool = True
) -> Iterator[None]:
    """Pretend a GPU inside, on which all is in 16 bits that may be."""
    with pretended(gpu, tf32=tf32):
        # Scales need variables, which nothing initializes.
        tf_amp.enable(dtype, opt_level=level, strict=True, loss_scale="none")
        yield
        tf_amp.disable()


def forms(traced: Traced) -> set[tuple[object, ...]]:
    """Return how nodes in 16 bits that have a layout, or hold others, do so."""
    return {
        (node.op, fused_in(node), layout_of(node), type_of(node))
        for node in traced.low_nodes
        if layout_of(node) or fused_in(node)
    }


@gpus
@dtypes
@programs
def test_no_form_is_made_that_tensorflow_does_not_make_itself(
    program: Program, dtype: str, gpu: Gpu, tf32: bool
) -> None:
    with enabled(gpu, dtype, tf32=tf32):
        found = forms(program.traced(gpu).optimized())
        by_hand = program.traced(gpu, tf.dtypes.as_dtype(dtype))
        assert found
        if dtype == "float16" and not FUSES_FLOAT16:
            found = {form for form in found if form[0] != "_FusedConv2D"}
        assert found <= forms(by_hand.optimized(with_pass=False))


def products_of(traced: Traced) -> list[NodeDef]:
    """Return the convolutions of a graph, and their gradients."""
    return [n for n in traced.graph_def.node if "Conv2" in n.op]


def convolutions(
    dtype: tf.DType, given: Tensors, *, data_format: str = "NHWC"
) -> Tensors:
    """Return what convolutions make, one after the other."""
    x, *kernels = given
    for kernel in kernels:
        x = tf.nn.conv2d(x, kernel, 1, "SAME", data_format=data_format)
    return [x]


def channels_first(dtype: tf.DType, given: Tensors) -> Tensors:
    """Return what convolutions make that are written so."""
    return convolutions(dtype, given, data_format="NCHW")


LARGE_KERNEL = 3, 3, 256, 256
LARGE = Program(convolutions, ((64, 32, 32, 256), *[LARGE_KERNEL] * 8))
FIRST = Program(channels_first, ((64, 256, 32, 32), *[LARGE_KERNEL] * 8))


@pytest.mark.parametrize("gpu", [V100, H100], ids=["V100", "H100"])
# What is fused of a normalization that is evaluated runs on GPUs alone.
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"normalized"}))
def test_results_are_those_of_float32(name: str, gpu: Gpu) -> None:
    program = PROGRAMS[name]
    # Compute capability 9.0 chooses channels first, too, if float32 is to be exact.
    with enabled(gpu, "float16", tf32=False):
        # In the second iteration biases are fused, which no CPU's kernel computes.
        laid_out = program.traced(gpu).optimized(iterations=1)
        plain, by_hand = program.traced(gpu), program.traced(gpu, tf.float16)
    assert "NCHW" not in {layout_of(node) for node in laid_out.low_nodes}
    values, names = program.values(), program.names
    found, wanted, yardstick = (
        results_on_cpu(graph, values, names) for graph in (laid_out, plain, by_hand)
    )
    for low, exact, hand in zip(found, wanted, yardstick, strict=True):
        assert low.shape == exact.shape
        assert low.dtype == exact.dtype
        assert error(low, exact) < max(2 * error(hand, exact), 0.01)


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the norm of a difference, by that of what is wanted."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@programs
@dtypes
def test_fewer_transposes_are_left_than_in_float32(
    program: Program, dtype: str
) -> None:
    gpu = V100 if dtype == "float16" else A100
    with enabled(gpu, dtype, tf32=False):
        found = program.traced(gpu).optimized()
        float32 = program.traced(gpu).optimized(with_pass=False)
    assert found.count("Transpose") <= float32.count("Transpose")


@programs
@dtypes
def test_a_second_visit_changes_nothing(program: Program, dtype: str) -> None:
    with enabled(H100, dtype):
        once = program.traced(H100).optimized(iterations=1)
        again = once.optimized(iterations=1, layouts=False)
        alone = once.optimized(iterations=1, layouts=False, with_pass=False)
    assert again.low_nodes
    assert again.graph_def == alone.graph_def


@programs
def test_new_nodes_are_on_the_gpu(program: Program) -> None:
    with enabled(V100, "float16"):
        found = program.traced(V100).optimized()
    assert {node.device for node in found.graph_def.node} == {
        "/job:localhost/replica:0/task:0/device:GPU:0"
    }


def test_biases_are_added_in_float32_where_layouts_cannot_be_chosen() -> None:
    program = PROGRAMS["biased step"]
    fails = mock.patch.object(grappler_preview, "run_grappler", lambda *asked: None)
    with fails, enabled(V100, "float16"):
        found = program.traced(V100).optimized()
    products = products_of(found)
    assert {(type_of(n), layout_of(n)) for n in products} == {(LOW["float16"], "NCHW")}
    assert not any(map(fused_in, products))


def test_convolutions_that_stay_float32_keep_their_layout_where_most_do() -> None:
    with pretended(V100):
        tf_amp.enable("float16", opt_level="O2", strict=True, exclude=("Conv2D_[12]",))
        found = Program(convolutions, (IMAGES, *[KERNEL] * 3)).traced(V100)
        found = found.optimized()
        tf_amp.disable()
    layouts_of = {(type_of(node), layout_of(node)) for node in products_of(found)}
    assert layouts_of == {(LOW["float16"], "NHWC"), (FLOAT32, "NCHW")}


@pytest.mark.parametrize("profile", ["v100", "t4", "a100", "h100", "h200"])
@pytest.mark.parametrize("program", [LARGE, FIRST], ids=["last", "first"])
def test_plans_that_pay_read_channels_last(program: Program, profile: str) -> None:
    with pretended(V100):
        tf_amp.enable("float16", device_profile=profile, strict=True)
        found = program.traced(V100).optimized()
        (plan,) = {plan.summary(): plan for plan in tf_amp.plans()}.values()
    forms_found = {(type_of(n), layout_of(n)) for n in products_of(found)}
    assert forms_found == {(LOW["float16"], "NHWC")}
    assert plan.predicted_speedup > 1.2


def test_transposes_are_in_the_predicted_time() -> None:
    def found() -> tuple[Traced, float]:
        tf_amp.enable("float16", strict=True)
        traced = FIRST.traced(V100).optimized(iterations=1)
        seconds = tf_amp.plans()[-1].seconds_after
        tf_amp.disable()
        return traced, seconds

    with pretended(V100):
        traced, seconds = found()
    left_alone = mock.patch.object(graph_settings, "layouts_for", lambda *asked: None)
    with left_alone, pretended(V100):
        _, without = found()
    model = CostModel(DeviceProfile.load("v100"))
    images = (TensorSpec(FIRST.shapes[0], "float32"),)
    transpose = OpCall("Transpose", {}, images, images)
    transposes = [node for node in traced.graph_def.node if node.op == "Transpose"]
    assert len(transposes) == 2
    assert seconds - without == pytest.approx(
        sum(model.price(transpose, DTYPE_NAMES[type_of(t)]).seconds for t in transposes)
    )


def test_what_xla_compiles_keeps_its_layout() -> None:
    specs = [tf.TensorSpec(shape) for shape in FIRST.shapes]
    with enabled(H100, "bfloat16"):
        step = tf.function(lambda *x: channels_first(tf.float32, x), jit_compile=True)
        name = step.get_concrete_function(*specs).name
    nodes = private.function_named(name).node_def
    products = [node for node in nodes if node.op == "Conv2D"]
    assert {(type_of(n), layout_of(n)) for n in products} == {(LOW["bfloat16"], "NCHW")}
    assert "Transpose" not in {node.op for node in nodes}


@dtypes
def test_bfloat16_products_with_a_bias_are_in_parts(dtype: str) -> None:
    def product(*given: tf.Tensor) -> tf.Tensor:
        # What Grappler makes of a dense layer where cublasLt is asked for.
        fused = tf.compat.v1.AttrValue(list={"s": [b"BiasAdd", b"Relu"]})
        attrs = {"fused_ops": fused, "num_args": tf.compat.v1.AttrValue(i=1)}
        graph = tf.compat.v1.get_default_graph()
        op = graph.create_op("_FusedMatMul", given, [tf.float32], name="x", attrs=attrs)
        return tf.identity(op.outputs[0])

    with enabled(H100, dtype, level="O3"):
        specs = [tf.TensorSpec(shape) for shape in ((64, 64), (64, 64), (64,))]
        found = Traced.from_function(product, specs, H100).optimized()
    (fused,) = (node for node in found.low_nodes if "MatMul" in node.op)
    assert fused.op == ("_FusedMatMul" if dtype == "float16" else "MatMul")


@pytest.mark.parametrize(
    ("dtype", "capability", "is_chosen"),
    [
        ("float16", None, False),
        ("float16", P100.capability, False),
        ("float16", V100.capability, True),
        ("bfloat16", T4.capability, False),
        ("bfloat16", A100.capability, True),
    ],
)
def test_layouts_are_chosen_where_tensor_cores_compute_in_a_type(
    dtype: str, capability: tuple[int, int] | None, is_chosen: bool
) -> None:
    assert (graph_settings.layouts_for(dtype, capability) is not None) == is_chosen


def test_a_graph_that_tensorflow_refuses_gets_no_layouts() -> None:
    choose = graph_settings.layouts_for("float16", V100.capability)
    assert choose is not None
    assert choose(GraphDef(), ("missing",)) is None


def test_explain_plans_for_the_gpu_of_the_machine() -> None:
    """Blank devices, TensorFlow's fusions for a GPU, and its prices."""
    weight = tf.Variable(tf.zeros((64, 64)))
    step = tf.function(lambda x: tf.nn.relu(x @ weight + weight[0]))
    spec = tf.TensorSpec((64, 64))
    here = tf_amp.explain(step, spec)
    with pretended(H100):
        on_gpu = tf_amp.explain(step, spec)
    assert "h100" not in here.profile and not here.host_bound
    assert "h100" in on_gpu.profile and on_gpu.host_bound
