"""Prices: positive, growing with size, and true to what an op has to do."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec, op_work
from grappler_pass.costs.calls import UNKNOWN_BATCH, UNKNOWN_DIMENSION
from grappler_pass.costs.grid import Grid, monotone
from grappler_pass.costs.op_work import works_of

DTYPES = ("float32", "bfloat16", "float16")
PROFILES = DeviceProfile.names()
MODELS = {name: CostModel(DeviceProfile.load(name)) for name in PROFILES}
MEASURED = MODELS["cpu-avx512-bf16"]

profiles = st.sampled_from(PROFILES)
dtypes = st.sampled_from(DTYPES)
dims = st.integers(1, 3000)


def spec(*shape, dtype="float32"):
    return TensorSpec(shape, dtype)


def matmul(m, k, n, **attrs):
    return OpCall("MatMul", attrs, (spec(m, k), spec(k, n)), (spec(m, n),))


def batch_matmul(b, m, k, n):
    return OpCall("BatchMatMulV2", {}, (spec(b, m, k), spec(b, k, n)), (spec(b, m, n),))


def elementwise(op, *shape):
    count = 2 if op in ("AddV2", "Mul", "TanhGrad") else 1
    return OpCall(op, {}, (spec(*shape),) * count, (spec(*shape),))


def convolution(op, batch, edge, channels, filters, kernel=3, stride=1, **attrs):
    small = -(-edge // stride)
    image = spec(batch, edge, edge, channels)
    weights = spec(kernel, kernel, channels, filters)
    result = spec(batch, small, small, filters)
    sizes = spec(4, dtype="int32")
    attrs = {"strides": (1, stride, stride, 1), "data_format": b"NHWC", **attrs}
    inputs, output = {
        "Conv2DBackpropInput": ((sizes, weights, result), image),
        "Conv2DBackpropFilter": ((image, sizes, result), weights),
    }.get(op, ((image, weights), result))
    return OpCall(op, attrs, inputs, (output,))


def depthwise(op, batch, edge, channels, kernel=3, stride=1):
    small = -(-edge // stride)
    image = spec(batch, edge, edge, channels)
    weights = spec(kernel, kernel, channels, 1)
    result = spec(batch, small, small, channels)
    sizes = spec(4, dtype="int32")
    inputs, output = {
        "DepthwiseConv2dNativeBackpropInput": ((sizes, weights, result), image),
        "DepthwiseConv2dNativeBackpropFilter": ((image, sizes, result), weights),
    }.get(op, ((image, weights), result))
    attrs = {"strides": [1, stride, stride, 1]}
    return OpCall(op, attrs, inputs, (output,))


def fused(op, names, inputs, output):
    return OpCall(op, {"fused_ops": tuple(names)}, tuple(inputs), (output,))


def seconds(call, dtype, model=MEASURED):
    return model.price(call, dtype).seconds


def ratio(call):
    return seconds(call, "bfloat16") / seconds(call, "float32")


# --- what a call has to do -----------------------------------------------------------


def test_a_transposed_product_counts_the_same_dimensions_in_another_class():
    (plain,) = works_of(matmul(8, 16, 32), "float32")
    assert (plain.op_class, plain.point) == ("matmul", (8, 16, 32))
    assert plain.flops == 2 * 8 * 16 * 32
    for left, right, expected in (
        (True, False, "matmul.ta"),
        (False, True, "matmul.tb"),
    ):
        call = OpCall(
            "MatMul",
            {"transpose_a": left, "transpose_b": right},
            (
                spec(16, 8) if left else spec(8, 16),
                spec(32, 16) if right else spec(16, 32),
            ),
            (spec(8, 32),),
        )
        (work,) = works_of(call, "float32")
        assert work.product is not None
        assert (work.product.m, work.product.n, work.product.k) == (8, 32, 16)
        same = dataclasses.replace(plain, op_class=expected, product=work.product)
        assert work == same


def test_a_batch_of_one_is_a_plain_product():
    (work,) = works_of(batch_matmul(1, 8, 16, 32), "float32")
    assert (work.op_class, work.point) == ("matmul", (8, 16, 32))


@pytest.mark.parametrize(
    ("equation", "left", "right", "result", "classes"),
    [
        ("ab,bc->ac", (8, 16), (16, 32), (8, 32), ["matmul"]),
        ("...ab,bc->...ac", (8, 16), (16, 32), (8, 32), ["matmul"]),
        ("...a,ab->...b", (4, 8, 16), (16, 32), (4, 8, 32), ["matmul"]),
        ("...ab,...bc->...ac", (4, 8, 16), (4, 16, 2), (4, 8, 2), ["batch_matmul"]),
        ("bij,bjk->bik", (4, 8, 16), (4, 16, 32), (4, 8, 32), ["batch_matmul"]),
        (
            "aecd,abcd->acbe",
            (2, 8, 4, 16),
            (2, 8, 4, 16),
            (2, 4, 8, 8),
            ["batch_matmul", "Transpose", "Transpose"],
        ),
    ],
)
def test_an_einsum_is_a_product_with_its_transposes(
    equation, left, right, result, classes
):
    call = OpCall(
        "Einsum", {"equation": equation}, (spec(*left), spec(*right)), (spec(*result),)
    )
    assert [work.op_class for work in works_of(call, "float32")] == classes


@pytest.mark.parametrize(
    ("op", "direction"),
    [
        ("Conv2D", "forward"),
        ("Conv2DBackpropInput", "input_gradient"),
        ("Conv2DBackpropFilter", "filter_gradient"),
    ],
)
def test_a_convolution_and_its_gradients_do_the_same_multiplications(op, direction):
    (work,) = works_of(convolution(op, 8, 28, 64, 128, stride=2), "float32")
    assert work.op_class == f"conv.{direction}.9.s2"
    assert work.point == (8 * 14 * 14, 64, 128)
    assert work.flops == 2 * 8 * 14 * 14 * 9 * 64 * 128


def test_an_unmeasured_kernel_is_scaled_from_the_nearest_below():
    (work,) = works_of(convolution("Conv2D", 1, 8, 16, 16, kernel=5), "float32")
    assert work.op_class == "conv.forward.9.s1"
    assert work.scale == pytest.approx(25 / 9)


def test_a_fused_convolution_is_one_op_in_float32_and_its_parts_in_bfloat16():
    plain = convolution("_FusedConv2D", 8, 28, 64, 64)
    call = fused("_FusedConv2D", ["BiasAdd", "Relu"], plain.inputs, plain.outputs[0])
    assert [work.op_class for work in works_of(call, "float32")] == [
        "conv.forward.9.s1",
        "fused.BiasAdd",
        "fused.Relu",
    ]
    parts = [
        convolution("Conv2D", 8, 28, 64, 64),
        OpCall("BiasAdd", {}, (spec(8, 28, 28, 64), spec(64)), plain.outputs),
        OpCall("Relu", {}, plain.outputs, plain.outputs),
    ]
    assert seconds(call, "bfloat16") == pytest.approx(
        sum(seconds(part, "bfloat16") for part in parts)
    )


def test_a_fused_product_costs_more_than_the_plain_one():
    inputs = (spec(256, 512), spec(512, 512), spec(512))
    output = spec(256, 512)
    plain = matmul(256, 512, 512)
    for name in ("Relu", "GeluExact", "Tanh"):
        call = fused("_FusedMatMul", [b"BiasAdd", name.encode()], inputs, output)
        for dtype in ("float32", "bfloat16"):
            assert seconds(call, dtype) > seconds(plain, dtype)


def test_constants_variable_reads_and_views_are_free():
    for op in ("Const", "ReadVariableOp", "Reshape", "Identity", "Placeholder"):
        assert seconds(elementwise(op, 1000, 1000), "float32") == 0.0


def test_a_lookup_moves_its_rows_and_a_cast_of_the_table_the_table():
    rows, width, table = 1024, 64, 1_000_000
    call = OpCall(
        "GatherV2",
        {},
        (spec(table, width), spec(rows, dtype="int32"), spec(dtype="int32")),
        (spec(rows, width),),
    )
    (work,) = works_of(call, "float32")
    assert work.bytes_moved == 2 * rows * width * 4
    for model in MODELS.values():
        cast = model.cast_price(table * width, "float32", "float16").seconds
        if model.profile.kind == "cpu":
            assert cast > 20 * seconds(call, "float32", model)


def test_an_unknown_dimension_is_the_stated_guess():
    unknown = OpCall(
        "MatMul", {}, (spec(None, 64), spec(64, None)), (spec(None, None),)
    )
    known = matmul(UNKNOWN_BATCH, 64, UNKNOWN_DIMENSION)
    assert seconds(unknown, "float32") == seconds(known, "float32")
    nothing = OpCall("Conv2D", {}, (TensorSpec(None, "float32"),) * 2, ())
    assert seconds(nothing, "float32") > 0.0
    shapeless = TensorSpec(None, "float32")
    assert seconds(OpCall("MatMul", {}, (shapeless,) * 2, (shapeless,)), "float32") > 0


def test_an_unknown_op_is_priced_by_its_bytes():
    small, large = (elementwise("NobodysOp", n) for n in (1 << 10, 1 << 20))
    price = MEASURED.price(large, "float32")
    assert price.source == "roofline"
    assert price.seconds > 10 * MEASURED.price(small, "float32").seconds


# --- properties ----------------------------------------------------------------------

_shapes = {
    "MatMul": (matmul, 3),
    "BatchMatMulV2": (batch_matmul, 4),
}
_elementwise_ops = st.sampled_from(
    ["AddV2", "Tanh", "Relu", "Softmax", "Cast", "NobodysOp", "TanhGrad", "Erf"]
)


@settings(deadline=None)
@given(profiles, dtypes, st.sampled_from(sorted(_shapes)), st.data())
def test_a_larger_product_never_costs_less(profile, dtype, op, data):
    build, rank = _shapes[op]
    point = data.draw(st.tuples(*[dims] * rank))
    axis = data.draw(st.integers(0, rank - 1))
    # A batch of one is another class.
    point = (max(point[0], 2), *point[1:])
    larger = list(point)
    larger[axis] += data.draw(st.integers(1, 500))
    model = MODELS[profile]
    if model.profile.kind == "gpu":
        # Between multiples of eight a GPU is slower than at the next.
        point, larger = ([8 * size for size in each] for each in (point, larger))
    before = seconds(build(*point), dtype, model)
    assert 0.0 < before <= seconds(build(*larger), dtype, model) * (1 + 1e-9)


@settings(deadline=None)
@given(profiles, dtypes, _elementwise_ops, dims, dims)
def test_more_rows_never_cost_less(profile, dtype, op, rows, columns):
    model = MODELS[profile]
    small, large = (elementwise(op, n, columns) for n in (rows, 2 * rows))
    if op == "Cast":
        small, large = (
            OpCall(op, {}, call.inputs, (TensorSpec(call.inputs[0].shape, "bfloat16"),))
            for call in (small, large)
        )
    before = seconds(small, dtype, model)
    assert 0.0 < before <= seconds(large, dtype, model) * (1 + 1e-9)
    assert math.isfinite(before)


@settings(deadline=None)
@given(
    profiles,
    st.sampled_from(["Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"]),
    st.sampled_from([1, 3, 5, 7]),
    st.sampled_from([1, 2]),
    st.integers(1, 64),
    st.integers(1, 256),
    st.integers(1, 256),
)
def test_more_channels_never_cost_less(
    profile, op, kernel, stride, batch, channels, filters
):
    model = MODELS[profile]
    small, large = (
        convolution(op, batch, 14, channels, n, kernel=kernel, stride=stride)
        for n in (filters, 2 * filters)
    )
    for dtype in DTYPES:
        before = seconds(small, dtype, model)
        assert 0.0 < before <= seconds(large, dtype, model) * (1 + 1e-9)


@settings(deadline=None)
@given(profiles, st.integers(1, 1 << 26), st.permutations(DTYPES))
def test_a_cast_costs_something_and_more_when_larger(profile, elements, ends):
    model = MODELS[profile]
    source, target = ends[:2]
    here = model.cast_price(elements, source, target).seconds
    assert 0.0 < here <= model.cast_price(2 * elements, source, target).seconds
    assert model.cast_price(elements, source, source).seconds == 0.0


@settings(deadline=None)
@given(profiles, dtypes, dims, dims, dims)
def test_a_price_looked_up_again_is_the_same(profile, dtype, m, k, n):
    model = MODELS[profile]
    fresh = CostModel(model.profile)
    call = matmul(m, k, n, transpose_a=False)
    first = model.price(call, dtype)
    assert model.price(call, dtype) is first
    assert fresh.price(call, dtype) == first


def test_attributes_given_as_lists_are_priced_too():
    call = convolution("Conv2D", 4, 14, 32, 32, strides=[1, 2, 2, 1])
    same = convolution("Conv2D", 4, 14, 32, 32, strides=(1, 2, 2, 1))
    assert MEASURED.price(call, "float32") == MEASURED.price(same, "float32")


# --- grids ---------------------------------------------------------------------------


def test_a_grid_returns_its_points_and_grows_in_proportion_beyond_them():
    axes = ([1.0, 10.0], [2.0, 8.0, 32.0])
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    grid = Grid.from_seconds(axes, values)
    for point, value in zip(itertools.product(*axes), values, strict=True):
        assert grid.seconds(point) == pytest.approx(value)
    assert grid.seconds((30.0, 64.0)) == pytest.approx(6.0 * 3 * 2)
    assert grid.seconds((0.5, 1.0)) == pytest.approx(1.0)
    assert grid.seconds((1.0, 4.0)) == pytest.approx(math.sqrt(2.0))


def test_seconds_that_fall_with_size_are_lowered_where_they_were_disturbed():
    assert monotone([2, 2], [3.0, 2.0, 1.0, 4.0]) == [1.0, 2.0, 1.0, 4.0]


# --- what is known of the measured device --------------------------------------------


def test_large_products_and_convolutions_gain_by_bfloat16_where_it_has_units():
    assert ratio(matmul(1024, 1024, 1024)) < 0.75
    assert ratio(batch_matmul(64, 128, 64, 128)) < 0.95
    assert ratio(convolution("Conv2D", 16, 28, 128, 128)) < 0.8


def test_tiny_products_do_not_gain():
    assert ratio(matmul(16, 16, 16)) > 1.0


def test_strided_depthwise_input_gradients_are_ruinous_in_bfloat16():
    call = depthwise("DepthwiseConv2dNativeBackpropInput", 16, 28, 72, stride=2)
    assert ratio(call) > 8.0


def test_activations_that_lose_are_priced_so():
    for op in ("Tanh", "Sigmoid", "TanhGrad", "Erf"):
        assert ratio(elementwise(op, 1024, 512)) > 1.3


@pytest.mark.parametrize("profile", ["cpu-generic", "cpu-avx512-bf16"])
def test_products_in_float16_lose_on_a_cpu(profile):
    model = MODELS[profile]
    for call in (matmul(512, 512, 512), convolution("Conv2D", 16, 28, 128, 128)):
        assert seconds(call, "float16", model) > seconds(call, "float32", model)


def test_without_units_every_op_loses_in_16_bits():
    model = MODELS["cpu-generic"]
    calls = [
        matmul(1024, 1024, 1024),
        elementwise("Relu", 1 << 24),
        elementwise("Sum", 1 << 20),
        convolution("Conv2DBackpropFilter", 16, 28, 128, 128),
        depthwise("DepthwiseConv2dNative", 16, 28, 64),
    ]
    for call, dtype in itertools.product(calls, ("bfloat16", "float16")):
        assert seconds(call, dtype, model) > seconds(call, "float32", model)


@pytest.mark.parametrize("gpu", ["v100", "t4", "a100", "h100", "h200"])
def test_a_gpu_multiplies_large_matrices_at_the_rate_of_its_profile(gpu):
    model = MODELS[gpu]
    peak = model.profile.roofline.matrix_flops["float16"]
    size = 8192
    expected = 2 * size**3 / peak + model.profile.roofline.overhead_seconds
    # The last wave of tiles is not full.
    assert seconds(matmul(size, size, size), "float16", model) == pytest.approx(
        expected, rel=0.05
    )


@pytest.mark.parametrize("gpu", ["v100", "t4", "a100", "h100", "h200"])
@pytest.mark.parametrize("shape", [(4096, 1024, 1001), (4096, 1001, 1024)])
def test_a_gpu_is_faster_at_the_next_multiple_of_eight(gpu, shape):
    model = MODELS[gpu]
    rounded = [-(-size // 8) * 8 for size in shape]
    slow, fast = (seconds(matmul(*each), "float16", model) for each in (shape, rounded))
    assert slow > 1.5 * fast


def test_rows_of_the_batch_need_no_alignment():
    model = MODELS["v100"]
    odd, even = (
        seconds(matmul(rows, 1024, 1024), "float16", model) for rows in (4095, 4096)
    )
    assert odd <= even


def test_few_rows_leave_most_of_a_gpu_idle():
    model = MODELS["v100"]
    few, many = (
        seconds(matmul(rows, 256, 256), "float16", model) for rows in (64, 2560)
    )
    assert many < 2 * few


_every_op = st.sampled_from(
    sorted(
        set(op_work._BUILDERS)
        | {"Const", "Cast", "AssignAddVariableOp", "While", "NobodysOp"}
    )
)
_any_shape = st.none() | st.lists(st.none() | st.integers(0, 300), max_size=5).map(
    tuple
)
_any_spec = st.builds(
    TensorSpec, _any_shape, st.sampled_from(["float32", "int32", "bool", "resource"])
)
_specs = st.lists(_any_spec, max_size=4).map(tuple)
_attrs = st.fixed_dictionaries(
    {},
    optional={
        "strides": st.lists(st.integers(1, 3), max_size=4),
        "ksize": st.just((1, 3, 3, 1)),
        "fused_ops": st.lists(st.sampled_from([b"BiasAdd", "Relu", "Unheard"])),
        "equation": st.sampled_from([b"ab,bc->ac", "...a,ab->...b", "a->a", ""]),
        "is_training": st.booleans(),
        "data_format": st.sampled_from([b"NHWC", "NCHW"]),
        "transpose_a": st.booleans(),
    },
)


@settings(deadline=None)
@given(profiles, dtypes, _every_op, _attrs, _specs, _specs)
def test_whatever_the_shapes_a_price_is_a_number(
    profile, dtype, op, attrs, inputs, outputs
):
    price = MODELS[profile].price(OpCall(op, attrs, inputs, outputs), dtype)
    assert 0.0 <= price.seconds < math.inf
    assert price.source in ("profile", "roofline")
