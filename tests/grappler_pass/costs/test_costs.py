"""Prices of single operations, and what is known of measured devices."""

import itertools
import math

import pytest

from grappler_pass.costs import DeviceProfile, OpCall, TensorSpec
from grappler_pass.costs.calls import UNKNOWN_BATCH, UNKNOWN_DIMENSION, Work
from grappler_pass.costs.grid import Grid, monotone, no_slower_than_parts
from grappler_pass.costs.op_work import works_of
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
        same = plain._replace(op_class=expected, product=work.product)
        assert work == same


def test_square_factors_that_are_transposed_differently_have_prices_of_their_own():
    left = matmul(512, 512, 512, transpose_a=True)
    right = matmul(512, 512, 512, transpose_b=True)
    assert seconds(left, "float32") != seconds(right, "float32")


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
    ("equation", "right", "classes"),
    [
        ("...hd,hde->...e", (8, 16, 32), ["matmul"]),
        ("...ab,b->...a", (16,), ["matmul"]),
        ("...i,i->...", (16,), ["matmul"]),
        ("...abc,c->...ab", (16,), ["elementwise"]),
    ],
)
def test_an_einsum_of_an_unknown_rank_hides_no_more_dimensions_than_its_operands(
    equation, right, classes
):
    unknown = TensorSpec(None, "float32")
    call = OpCall("Einsum", {"equation": equation}, (unknown, spec(*right)), (unknown,))
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


def gather(op: str, table: TensorSpec, indices: tuple, *output: int) -> OpCall:
    return OpCall(op, {}, (table, spec(*indices, dtype="int32")), (spec(*output),))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (gather("GatherV2", spec(9000, 64), (7, 3), 7, 3, 64), ("gather", 21, 64)),
        # Rows of two axes lie together.
        (gather("GatherV2", spec(9, 64, 64), (10,), 10, 64, 64), ("gather", 10, 4096)),
        (
            gather("GatherV2", spec(90_000, 64), (7,), 7, 64),
            ("gather.cold", 7, 64),
        ),
        # Rows of so many elements are read ahead.
        (
            gather("GatherV2", spec(900, 64, 64), (10,), 10, 64, 64),
            ("gather", 10, 4096),
        ),
        (
            gather("ResourceGather", spec(dtype="resource"), (7,), 7, 8, 8),
            ("gather", 7, 64),
        ),
        # Along the last axis.
        (gather("GatherV2", spec(64, 90), (7,), 64, 7), ("gather", 64, 7)),
        (gather("GatherV2", spec(90), (7,), 7), ("gather", 7, 1)),
    ],
)
def test_a_lookup_counts_what_lies_together_as_a_row(call, expected):
    (work,) = works_of(call, "float32")
    assert (work.op_class, *work.point) == expected


@pytest.mark.parametrize("way", ["forward", "gradient"])
def test_channels_in_broken_blocks_are_normalized_by_slow_kernels(way):
    def norm(channels: int) -> OpCall:
        image, vector = spec(16, 28, 28, channels), spec(channels)
        given = {"forward": (image, vector), "gradient": (image, image, vector)}[way]
        op = {"forward": "FusedBatchNormV3", "gradient": "FusedBatchNormGradV3"}[way]
        return OpCall(op, {"is_training": True}, given, (image, vector))

    assert ratio(norm(96)) < 1.0
    assert ratio(norm(88)) > 2.5
    # Without prices of their own, they have those of the others.
    generic = MODELS["cpu-generic"]
    few, many = (seconds(norm(n), "float32", generic) for n in (88, 96))
    assert few < many


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


def test_a_grid_returns_its_points_and_grows_in_proportion_beyond_them():
    axes = ((1.0, 10.0), (2.0, 8.0, 32.0))
    values = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    grid = Grid(axes, values)
    for point, value in zip(itertools.product(*axes), values, strict=True):
        assert grid.seconds(point) == pytest.approx(value)
    assert grid.seconds((30.0, 64.0)) == pytest.approx(6.0 * 3 * 2)
    assert grid.seconds((0.5, 1.0)) == pytest.approx(1.0)
    assert grid.seconds((1.0, 4.0)) == pytest.approx(math.sqrt(2.0))


def test_below_its_first_point_a_grid_takes_a_fixed_part_and_one_by_size():
    axes, values = ((8.0, 32.0), (1.0, 2.0)), (1.0, 5.0, 6.0, 9.0)
    rising = Grid(axes, values).extended()
    assert rising.seconds((2.0, 2.0)) == pytest.approx(5.0 - 4.0 * 6.0 / 24.0)
    plain = Grid(axes, values)
    assert plain.smallness((2.0, 2.0)) == 0.25
    assert plain.smallness((8.0, 4.0)) == 1.0


def test_seconds_that_fall_with_size_are_lowered_where_they_were_disturbed():
    assert monotone([2, 2], [3.0, 2.0, 1.0, 4.0]) == [1.0, 2.0, 1.0, 4.0]


def test_a_product_that_takes_much_longer_than_its_parts_takes_what_they_do() -> None:
    axes = {"m": [64, 128], "k": [64, 128], "n": [64]}
    # Twice the rows are two parts; twice the sums are none, and take what they like.
    assert no_slower_than_parts(axes, [1.0, 9.0, 2.9, 10.0]) == [1.0, 9.0, 2.9, 10.0]
    assert no_slower_than_parts(axes, [1.0, 9.0, 8.0, 90.0]) == [1.0, 9.0, 2.0, 18.0]


@pytest.mark.parametrize("name", ["cpu-avx512-bf16", "cpu-intel-avx512-bf16"])
def test_few_products_of_machines_that_were_quiet_count_as_disturbed(name: str) -> None:
    assert 0.0 <= disturbed_share(name) < 0.01


def test_no_product_of_the_profile_of_a_machine_that_was_busy_is_disturbed() -> None:
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
