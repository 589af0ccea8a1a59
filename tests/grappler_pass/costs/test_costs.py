"""Prices of single operations, and what is known of measured devices."""

import itertools
import math

import pytest

from grappler_pass.costs import DeviceProfile, OpCall, TensorSpec
from grappler_pass.costs.calls import UNKNOWN_BATCH, UNKNOWN_DIMENSION, Work
from grappler_pass.costs.op_work import works_of
from grappler_pass.costs.times import Grid, monotone, no_slower_than_parts
from tests.op_calls import (
    MEASURED,
    MODELS,
    batch_matmul,
    convolution,
    depthwise,
    elementwise,
    fused,
    matmul,
    ratio,
    seconds,
    spec,
)

# --- what a call has to do -----------------------------------------------------------


UNKNOWN = TensorSpec(None, "float32")
CLOCKWISE = {"transpose_a": True}, spec(16, 8), spec(16, 32)
COUNTER = {"transpose_b": True}, spec(8, 16), spec(32, 16)


def turned(attrs: dict[str, object], *inputs: TensorSpec) -> OpCall:
    return OpCall("MatMul", attrs, inputs, (spec(8, 32),))


def einsum(equation: str, left: TensorSpec, right: TensorSpec, *out: int) -> OpCall:
    result = spec(*out) if out else UNKNOWN
    return OpCall("Einsum", {"equation": equation}, (left, right), (result,))


def gather(op: str, table: TensorSpec, indices: tuple, *output: int) -> OpCall:
    return OpCall(op, {}, (table, spec(*indices, dtype="int32")), (spec(*output),))


ATTENDED = spec(2, 8, 4, 16)
OF_ROWS = spec(dtype="resource")


@pytest.mark.parametrize(
    ("call", "works"),
    [
        (matmul(8, 16, 32), "matmul 8 16 32"),
        (turned(*CLOCKWISE), "matmul.ta 8 16 32"),
        (turned(*COUNTER), "matmul.tb 8 16 32"),
        # A batch of one is a plain product.
        (batch_matmul(1, 8, 16, 32), "matmul 8 16 32"),
        # An einsum is a product with its transposes.
        (einsum("ab,bc->ac", spec(8, 16), spec(16, 32), 8, 32), "matmul"),
        (einsum("...ab,bc->...ac", spec(8, 16), spec(16, 32), 8, 32), "matmul"),
        (einsum("...a,ab->...b", spec(4, 8, 16), spec(16, 32), 4, 8, 32), "matmul"),
        (
            einsum("...ab,...bc->...ac", spec(4, 8, 16), spec(4, 16, 2), 4, 8, 2),
            "batch_matmul",
        ),
        (
            einsum("bij,bjk->bik", spec(4, 8, 16), spec(4, 16, 32), 4, 8, 32),
            "batch_matmul",
        ),
        (
            einsum("aecd,abcd->acbe", ATTENDED, ATTENDED, 2, 4, 8, 8),
            "batch_matmul; Transpose; Transpose",
        ),
        # Of an unknown rank it hides no more dimensions than its operands.
        (einsum("...hd,hde->...e", UNKNOWN, spec(8, 16, 32)), "matmul"),
        (einsum("...ab,b->...a", UNKNOWN, spec(16)), "matmul"),
        (einsum("...i,i->...", UNKNOWN, spec(16)), "matmul"),
        (einsum("...abc,c->...ab", UNKNOWN, spec(16)), "elementwise"),
        # A convolution and its gradients do the same multiplications.
        (convolution("Conv2D", 8, 28, 64, 128, stride=2), "conv.forward.9.s2 1568"),
        (
            convolution("Conv2DBackpropInput", 8, 28, 64, 128, stride=2),
            "conv.input_gradient.9.s2 1568 64 128",
        ),
        (
            convolution("Conv2DBackpropFilter", 8, 28, 64, 128, stride=2),
            "conv.filter_gradient.9.s2 1568 64 128",
        ),
        # What lies together counts as a row, of several axes, too.
        (gather("GatherV2", spec(9000, 64), (7, 3), 7, 3, 64), "gather 21 64"),
        (gather("GatherV2", spec(9, 64, 64), (10,), 10, 64, 64), "gather 10 4096"),
        (gather("GatherV2", spec(90_000, 64), (7,), 7, 64), "gather.cold 7 64"),
        # Rows of so many elements are read ahead.
        (gather("GatherV2", spec(900, 64, 64), (10,), 10, 64, 64), "gather 10 4096"),
        (gather("ResourceGather", OF_ROWS, (7,), 7, 8, 8), "gather 7 64"),
        # Along the last axis.
        (gather("GatherV2", spec(64, 90), (7,), 64, 7), "gather 64 7"),
        (gather("GatherV2", spec(90), (7,), 7), "gather 7 1"),
    ],
)
def test_a_call_has_a_class_and_sizes(call: OpCall, works: str) -> None:
    expected = [work.split() for work in works.split("; ")]
    found = [[w.op_class, *map(str, w.point)] for w in works_of(call, "float32")]
    sized = zip(found, expected, strict=True)
    assert [each[: len(wanted)] for each, wanted in sized] == expected


def test_work_counts_multiplications_additions_and_what_is_moved() -> None:
    for call in (matmul(8, 16, 32), turned(*CLOCKWISE), turned(*COUNTER)):
        (work,) = works_of(call, "float32")
        assert work.flops == 2 * 8 * 16 * 32 and work.product is not None
        assert (work.product.m, work.product.n, work.product.k) == (8, 32, 16)
    for gradient in ("", "BackpropInput", "BackpropFilter"):
        call = convolution(f"Conv2D{gradient}", 8, 28, 64, 128, stride=2)
        (work,) = works_of(call, "float32")
        assert work.flops == 2 * 8 * 14 * 14 * 9 * 64 * 128
    # An unmeasured kernel is scaled from the nearest below.
    (work,) = works_of(convolution("Conv2D", 1, 8, 16, 16, kernel=5), "float32")
    assert work.op_class == "conv.forward.9.s1"
    assert work.scale == pytest.approx(25 / 9)


def test_square_factors_that_are_transposed_differently_have_prices_of_their_own():
    left = matmul(512, 512, 512, transpose_a=True)
    right = matmul(512, 512, 512, transpose_b=True)
    assert seconds(left, "float32") != seconds(right, "float32")


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


def test_channels_in_broken_blocks_are_normalized_by_slow_kernels():
    def norm(channels: int, *, gradient: bool) -> OpCall:
        image, vector = spec(16, 28, 28, channels), spec(channels)
        given = (image, image, vector) if gradient else (image, vector)
        op = "FusedBatchNormGradV3" if gradient else "FusedBatchNormV3"
        return OpCall(op, {"is_training": True}, given, (image, vector))

    generic = MODELS["cpu-generic"]
    for gradient in (False, True):
        few, many = (norm(channels, gradient=gradient) for channels in (88, 96))
        assert ratio(many) < 1.0 and ratio(few) > 2.5
        # Without prices of their own, they have those of the others.
        assert seconds(few, "float32", generic) < seconds(many, "float32", generic)


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


def test_a_depthwise_convolution_that_nobody_measured_is_not_priced_by_additions():
    for direction in ("", "BackpropInput"):
        call = depthwise(f"DepthwiseConv2dNative{direction}", 16, 32, 256)
        (work,) = works_of(call, "float32")
        guess = MEASURED.profile.roofline.seconds(work, "float32")
        assert 0.4 < guess / seconds(call, "float32") < 2.5


# --- grids ---------------------------------------------------------------------------


def test_a_grid_is_read_at_its_points_between_beyond_and_below_them():
    axes = ((1.0, 10.0), (2.0, 8.0, 32.0))
    values = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    grid = Grid(axes, values)
    for point, value in zip(itertools.product(*axes), values, strict=True):
        assert grid.seconds(point) == pytest.approx(value)
    assert grid.seconds((30.0, 64.0)) == pytest.approx(6.0 * 3 * 2)
    assert grid.seconds((0.5, 1.0)) == pytest.approx(1.0)
    assert grid.seconds((1.0, 4.0)) == pytest.approx(math.sqrt(2.0))
    # Below its first point it takes a fixed part and one by size.
    plain = Grid(((8.0, 32.0), (1.0, 2.0)), (1.0, 5.0, 6.0, 9.0))
    assert plain.extended().seconds((2.0, 2.0)) == pytest.approx(5.0 - 4.0 * 6 / 24)
    assert plain.smallness((2.0, 2.0)) == 0.25
    assert plain.smallness((8.0, 4.0)) == 1.0
    # Seconds that fall with size are lowered where they were disturbed.
    assert monotone([2, 2], [3.0, 2.0, 1.0, 4.0]) == [1.0, 2.0, 1.0, 4.0]


def test_a_product_that_takes_much_longer_than_its_parts_takes_what_they_do() -> None:
    axes = {"m": [64, 128], "k": [64, 128], "n": [64]}
    # Twice the rows are two parts; twice the sums are none, and take what they like.
    assert no_slower_than_parts(axes, [1.0, 9.0, 2.9, 10.0]) == [1.0, 9.0, 2.9, 10.0]
    assert no_slower_than_parts(axes, [1.0, 9.0, 8.0, 90.0]) == [1.0, 9.0, 2.0, 18.0]


def test_few_products_of_shipped_profiles_count_as_disturbed() -> None:
    assert disturbed_share("cpu-avx512-bf16") < 0.01
    assert disturbed_share("cpu-intel-avx512-bf16") < 0.01
    # What was measured on a busy machine has been lowered.
    assert disturbed_share("cpu-amx-bf16") == 0.0


def disturbed_share(name: str) -> float:
    """Return the share of a shipped profile's products that are to be lowered."""
    classes = DeviceProfile.load(name).data["classes"]
    is_lowered = [
        before > after
        for op_class in ("matmul", "matmul.ta", "matmul.tb", "batch_matmul")
        for entry in [classes[op_class]]
        for measured in entry["seconds"].values()
        for before, after in zip(
            measured, no_slower_than_parts(entry["axes"], measured), strict=True
        )
    ]
    return sum(is_lowered) / len(is_lowered)


STRIDED = depthwise("DepthwiseConv2dNativeBackpropInput", 16, 28, 72, stride=2)


@pytest.mark.parametrize(
    ("call", "least", "most"),
    [
        (matmul(1024, 1024, 1024), 0.0, 0.75),
        (batch_matmul(64, 128, 64, 128), 0.0, 0.95),
        (convolution("Conv2D", 16, 28, 128, 128), 0.0, 0.8),
        # Tiny products do not gain, and activations lose.
        (matmul(16, 16, 16), 1.0, math.inf),
        *((elementwise(op, 1024, 512), 1.3, math.inf) for op in ("Tanh", "Sigmoid")),
        *((elementwise(op, 1024, 512), 1.3, math.inf) for op in ("TanhGrad", "Erf")),
        # Strided depthwise gradients are ruinous.
        (STRIDED, 8.0, math.inf),
    ],
)
def test_bfloat16_gains_where_there_are_units(
    call: OpCall, least: float, most: float
) -> None:
    assert least < ratio(call) < most


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


@pytest.mark.parametrize("name", ["cpu-generic", "v100"])
def test_to_start_an_op_takes_its_time_however_little_it_does(name):
    roofline = MODELS[name].profile.roofline
    nothing = Work("elementwise", (1.0,), 0.0, 0.0)
    once, often = (
        roofline.seconds(nothing._replace(times=times), "float32")
        for times in (1.0, 100.0)
    )
    assert once >= roofline.overhead_seconds > 0
    assert often == pytest.approx(100 * roofline.overhead_seconds)


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


def test_rows_of_the_batch_need_no_alignment_and_few_leave_a_gpu_idle():
    def taken(rows: int, edge: int) -> float:
        return seconds(matmul(rows, edge, edge), "float16", MODELS["v100"])

    assert taken(4095, 1024) <= taken(4096, 1024)
    assert taken(2560, 256) < 2 * taken(64, 256)
