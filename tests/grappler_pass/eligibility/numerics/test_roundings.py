"""What may be rounded between products, one small graph for each part of the rule."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.eligibility.sensitivity import has_sum
from grappler_pass.graph.op_table import OP_TABLE, RECURRENT_OPS, Errors
from grappler_pass.planning.plan import Cause
from tests.coloring import Colored, color
from tests.coloring_programs import X, colored_function, weights
from tests.small_graphs import CHAIN

BEFORE = f"""{CHAIN}
    bias = Placeholder
    allow2 = MatMul(x, w)
"""


def between(lines: str, last: str, **given: str) -> Colored:
    """Color lines between two products, of which the second reads `last`."""
    graph = f"{BEFORE}\n{lines}\nafter = MatMul({last}, w)\nfetch = Identity(after)"
    return color(graph, fetch="fetch", **given)


def behind(lines: str, last: str, low_dtype: str = "bfloat16") -> Colored:
    """Color lines behind the last product; `last` is fetched."""
    graph = f"{BEFORE}\n{lines}\nfetch = Identity({last})"
    return color(graph, fetch="fetch", low_dtype=low_dtype)


# 16 bits begin at products.


@pytest.mark.parametrize("op", ["Mul(x, bias)", "AddV2(x, bias)", "Tanh(x)"])
def test_arithmetic_before_a_product_is_float32(op: str) -> None:
    colored = between(f"made = {op}\nmoved = Reshape(made, axis)", "moved")
    assert colored.colors("made moved after") == "F L L"
    assert colored.cause("made") is Cause.NO_PRODUCT


def test_movement_that_anything_but_products_reads_is_float32() -> None:
    colored = between("moved = Reshape(x, axis)\nother = Tanh(moved)", "moved")
    assert colored.colors("moved") == "F"
    assert colored.detail("moved") == "other"


@pytest.mark.parametrize(
    ("equation", "shapes", "sums"),
    [
        ("i,j->ij", [(4,), (5,)], False),
        ("ij,jk->ik", [(4, 5), (5, 6)], True),
        ("ij,jk->ik", [(4, 1), (1, 6)], False),
        ("bi,bj->bij", [(4, 5), (4, 6)], False),
        ("...i,ij->...j", [(4, 5), (5, 6)], True),
        ("ij,jk->ik", [None, None], True),
        ("ij,jk->ik", [(), (1, 6)], True),
    ],
)
def test_an_einsum_without_a_sum_is_no_product(
    equation: str, shapes: list[tuple[int, ...] | None], sums: bool
) -> None:
    node = tf.compat.v1.NodeDef(op="Einsum")
    node.attr["equation"].s = equation.encode()
    assert has_sum(node, shapes) is sums


@pytest.mark.parametrize(
    ("op", "kernel", "sums"),
    [
        ("Conv2D", (1, 1, 1, 8), False),
        ("Conv2D", (1, 1, 8, 1), True),
        ("Conv2DBackpropInput", (1, 1, 8, 1), False),
        ("Conv2DBackpropInput", (1, 1, 1, 8), True),
        ("Conv2DBackpropInput", (1, 3, 8, 1), True),
        ("Conv2DBackpropFilter", (1, 1, 1, 1), True),
        ("DepthwiseConv2dNative", (1, 1, 8, 2), False),
        ("DepthwiseConv2dNative", (1, 3, 8, 2), True),
    ],
)
def test_a_convolution_that_only_scales_is_no_product(
    op: str, kernel: tuple[int, ...], sums: bool
) -> None:
    assert has_sum(tf.compat.v1.NodeDef(op=op), [(4, 8, 8, 8), kernel]) is sums


@pytest.mark.parametrize(
    ("op", "transposes", "left", "sums"),
    [
        ("MatMul", "transpose_a", (1, 8), False),
        ("MatMul", "", (8, 1), False),
        ("MatMul", "", (1, 8), True),
        ("BatchMatMulV2", "", (2, 8, 1), False),
        ("BatchMatMulV2", "adj_x", (2, 1, 8), False),
        ("BatchMatMulV2", "", (2, 1, 8), True),
        ("BatchMatMulV2", "", None, True),
    ],
)
def test_a_product_of_columns_by_rows_is_no_product(
    op: str, transposes: str, left: tuple[int, ...] | None, sums: bool
) -> None:
    node = tf.compat.v1.NodeDef(op=op)
    if transposes:
        node.attr[transposes].b = True
    assert has_sum(node, [left, None]) is sums


def test_an_outer_product_of_inputs_stays_float32() -> None:
    w = weights(8, 8)

    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.einsum("i,j->ij", x[0], x[1]) @ w)

    colored = colored_function(run, X)
    assert colored.low_ops("Einsum") == (0, 1)
    assert colored.low_ops("MatMul") == (1, 1)


# Sums.


def test_a_sum_with_a_float32_value_of_its_size_is_float32() -> None:
    colored = between("sum = AddV2(allow1, x)\nact = Relu(sum)", "act")
    assert colored.colors("sum act") == "F L"
    assert colored.cause("sum") is Cause.PROMOTED
    assert colored.detail("sum") == "x"


def test_a_broadcast_bias_follows_the_product() -> None:
    colored = between("sum = BiasAdd(allow1, bias)\nact = Sigmoid(sum)", "act")
    assert colored.colors("sum act") == "L L"


@pytest.mark.parametrize(("shape", "color"), [("shape=[]", "L"), ("", "F")])
def test_a_scalar_is_smaller_than_a_sum_of_any_shape(shape: str, color: str) -> None:
    lines = f"""
        sizes = Placeholder dtype=int32
        moved = Reshape(allow1, sizes)
        term = Placeholder {shape}
        sum = AddV2(moved, term)
        act = Tanh(sum)
    """
    assert between(lines, "act").colors("sum") == color


@pytest.mark.parametrize(("dtype", "color"), [("bfloat16", "L"), ("int32", "F")])
def test_what_was_in_16_bits_is_as_inexact_as_a_product(dtype: str, color: str) -> None:
    colored = between(
        f"""
        given = Placeholder dtype={dtype}
        up = Cast(given) SrcT={dtype} DstT=float
        act = Tanh(up)
        """,
        "act",
    )
    assert colored.colors("act") == color


def test_a_sum_with_a_variables_value_is_float32_whoever_reads_it() -> None:
    colored = between(
        """
        handle = VarHandleOp dtype=float32 shape=[2,2]
        value = ReadVariableOp(handle)
        step = Mul(allow1, bias)
        moved = Sub(value, step)
        """,
        "moved",
    )
    assert colored.colors("step moved") == "L F"
    assert colored.cause("moved") is Cause.STATE
    assert colored.detail("moved") == "value"


@pytest.mark.parametrize("count", [4, 5])
def test_products_are_added_up_a_few_times_in_a_row(count: int) -> None:
    lines, total = [], "allow1"
    for i in range(count):
        lines += [f"p{i} = MatMul(x, w)", f"s{i} = AddV2({total}, p{i})"]
        total = f"s{i}"
    colored = between("\n".join(lines), total)
    fits = count <= 4
    assert colored.colors(total) == ("L" if fits else "F")
    if not fits:
        assert colored.cause(total) is Cause.CHAIN
        assert colored.colors(f"s{count - 2}") == "L"


@pytest.mark.parametrize("count", [4, 5])
def test_products_that_are_fused_with_sums_are_counted_too(count: int) -> None:
    lines, total = [], "allow1"
    for i in range(count):
        fused = f"_FusedMatMul(x, w, bias, {total}) num_args=2 fused_ops=[BiasAdd,Add]"
        lines.append(f"s{i} = {fused}")
        total = f"s{i}"
    colored = between("\n".join(lines), total)
    last = colored.view.index[total]
    assert colored.slots.has_float32_results(last) is (count > 4)


@pytest.mark.parametrize("count", [2, 3])
def test_few_rounded_factors_in_a_row_follow_a_product(count: int) -> None:
    lines = ["f0 = Mul(allow1, bias)"]
    lines += [f"f{i} = Mul(f{i - 1}, bias)" for i in range(1, count)]
    colored = between("\n".join(lines), f"f{count - 1}")
    assert colored.colors(f"f{count - 1}") == ("L" if count <= 2 else "F")


def test_factors_of_a_factor_do_not_count_for_the_product() -> None:
    lines = "s1 = Mul(bias, bias)\ns2 = Mul(s1, bias)\ns3 = Mul(s2, bias)"
    colored = between(f"{lines}\nmade = Mul(allow1, s3)", "made")
    assert colored.colors("s3 made") == "F L"


def test_a_residual_sum_that_is_fused_with_its_product_is_float32() -> None:
    colored = between(
        "sum = _FusedMatMul(x, w, bias, x) num_args=2 fused_ops=[BiasAdd,Add]", "sum"
    )
    (slot,) = colored.slots_called("sum")
    assert colored.colors("sum") == "L"
    assert colored.slots.output_slot(colored.view.index["sum"], 0) != slot


def test_a_program_of_its_own_16_bits_with_fused_sums_is_planned() -> None:
    colored = between(
        "own = _FusedMatMul(y, y, y, y) num_args=2 fused_ops=[BiasAdd,Add] T=bfloat16\n"
        "y = Placeholder dtype=bfloat16",
        "allow1",
    )
    assert colored.cause("own") is Cause.NOT_FLOAT32


def test_a_sum_that_a_loop_carries_is_float32() -> None:
    w = weights(8, 8)

    def run(x: tf.Tensor) -> tf.Tensor:
        total = x @ w
        for _ in tf.range(5):
            total = total + tf.nn.relu(x @ w)
        return tf.nn.relu(total @ w)

    colored = colored_function(run, X)
    assert colored.low_ops("AddV2")[0] == 0
    low, of = colored.low_ops("MatMul")
    assert low == of


# Behind the last product.


@pytest.mark.parametrize(
    "lines",
    [
        "made = BiasAdd(allow1, bias)",
        "made = Tanh(allow1)",
        "biased = BiasAdd(allow1, bias)\nmade = Relu(biased)",
        "biased = BiasAdd(allow1, bias)\nsquare = Mul(biased, biased)\n"
        "made = Mean(square, axis)",
    ],
)
def test_what_lies_behind_the_last_product_is_float32(lines: str) -> None:
    colored = behind(lines, "made")
    names = [line.split(" = ")[0] for line in lines.split("\n")]
    assert set(colored.colors(" ".join(names)).split()) == {"F"}
    assert colored.colors("allow1") == "L"
    assert colored.cause(names[0]) is Cause.AFTER_PRODUCTS


@pytest.mark.parametrize("fused_ops", ["BiasAdd", "BiasAdd,Tanh"])
def test_of_the_last_fused_product_the_product_alone_is_low(fused_ops: str) -> None:
    fused = f"made = _FusedMatMul(x, w, bias) num_args=1 fused_ops=[{fused_ops}]"
    colored = behind(fused, "made")
    assert colored.colors("made") == "L"
    assert colored.slots.has_float32_results(colored.view.index["made"])


@pytest.mark.parametrize(("op", "color"), [("ReluGrad", "L"), ("SoftplusGrad", "F")])
def test_of_a_gradients_other_operand_the_sign_alone_may_be_low(
    op: str, color: str
) -> None:
    colored = behind(
        f"""
        biased = BiasAdd(allow1, bias)
        gradient = Tanh(allow2)
        made = {op}(gradient, biased)
        """,
        "made",
    )
    assert colored.colors("biased") == color


def test_each_tensor_of_several_is_looked_at_for_itself() -> None:
    lines = """
        act = Tanh(allow1)
        both = IdentityN(act, x)
        other = Tanh(both:1)
        allow3 = MatMul(both:1, w)
    """
    assert between(lines, "both").colors("act both.T both.T[1]") == "L L F"


def test_a_factor_of_a_products_result_may_be_low_behind_the_last_product() -> None:
    assert behind("made = Mul(allow1, bias)", "made").colors("made") == "L"


@pytest.mark.parametrize(
    ("line", "in_float16"),
    [
        ("constant = Const value=0.125\nmade = Mul(allow1, constant)", "L"),
        ("constant = Const value=0.0078125\nmade = Mul(allow1, constant)", "F"),
        ("constant = Const value=8.0\nmade = RealDiv(allow1, constant)", "L"),
        ("constant = Const value=128.0\nmade = RealDiv(allow1, constant)", "F"),
        ("constant = Const value=128.0\nmade = RealDiv(constant, allow1)", "L"),
    ],
)
def test_behind_the_last_product_small_factors_are_float32_in_float16(
    line: str, in_float16: str
) -> None:
    for low_dtype, expected in (("bfloat16", "L"), ("float16", in_float16)):
        assert behind(line, "made", low_dtype).colors("made") == expected


@pytest.mark.parametrize("low_dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("factor", "color_of_it"), [(0.1, "F"), (0.5, "L")])
@pytest.mark.parametrize("where", [behind, between])
def test_one_inexact_factor_for_a_whole_tensor_is_not_rounded(
    where: Callable[..., Colored], factor: float, color_of_it: str, low_dtype: str
) -> None:
    lines = f"factor = Const value={factor}\nmade = Mul(allow1, factor)"
    colored = where(lines, "made", low_dtype=low_dtype)
    assert colored.colors("made") == color_of_it
    if color_of_it == "F":
        assert colored.cause("made") is Cause.FACTOR
        assert colored.detail("made") == "factor"


def test_between_products_a_small_factor_may_be_low_in_float16() -> None:
    graph = f"""{BEFORE}
        constant = Const value=0.0078125
        made = Mul(allow1, constant)
        after = MatMul(made, w)
        fetch = Identity(after)
    """
    colored = color(graph, fetch="fetch", low_dtype="float16")
    assert colored.colors("made") == "L"


# Near numbers, and jumps.


@pytest.mark.parametrize(
    ("lines", "culprit"),
    [
        ("act = Tanh(allow1)\nmade = Sub(bias, act)", "made"),
        ("act = Sigmoid(allow1)\nmade = Log(act)", "made"),
        ("act = Sigmoid(allow1)\nmade = TanhGrad(act, allow2)", "made"),
    ],
)
def test_an_activation_that_is_subtracted_or_magnified_is_float32(
    lines: str, culprit: str
) -> None:
    colored = between(lines, "made")
    assert colored.colors("act") == "F"
    assert colored.cause("act") in (Cause.NEAR_NUMBERS, Cause.MAGNIFIED)
    assert colored.detail("act") == culprit


@pytest.mark.parametrize(
    ("last", "color"),
    [
        ("Sub(allow1, moved)", "F"),
        ("AddN(scaled, x)", "F"),
        ("MatMul(moved, w)", "L"),
    ],
)
def test_what_is_summed_up_and_then_cancels_is_float32(last: str, color: str) -> None:
    lines = f"""
        weighted = Mul(allow1, bias)
        total = Sum(weighted, axis)
        moved = Identity(total)
        scaled = Mul(moved, bias)
        made = {last}"""
    colored = between(lines, "made")
    assert colored.colors("weighted") == color
    if color == "F":
        assert colored.cause("weighted") is Cause.NEAR_NUMBERS
        assert colored.detail("weighted") == "made"


@pytest.mark.parametrize(
    ("lines", "invariant", "color"),
    [
        ("read = Identity(entered)\nmade = Mul(read, bias)", "true", "F"),
        ("read = Identity(entered)\nmade = Mul(read, bias)", "false", "L"),
        ("read = Switch(entered, more)\nmade = Mul(read:1, bias)", "true", "F"),
        ("made = Reshape(entered, axis)", "true", "L"),
    ],
)
def test_what_each_iteration_computes_with_is_rounded_there_alone(
    lines: str, invariant: str, color: str
) -> None:
    lines = f"""
        biased = BiasAdd(allow1, bias)
        act = Tanh(biased)
        more = Placeholder dtype=bool
        entered = Enter(act) frame_name=loop is_constant={invariant}
        {lines}"""
    colored = between(lines, "made")
    assert colored.colors("biased act") == f"{color} {color}"
    if color == "F":
        assert colored.cause("act") is Cause.REPEATED
        assert colored.detail("act") == "entered"


@pytest.mark.parametrize(("goes_round", "color"), [("left:1", "F"), ("made", "L")])
def test_a_loops_variable_that_never_changes_is_rounded_within_it(
    goes_round: str, color: str
) -> None:
    lines = f"""
        biased = BiasAdd(allow1, bias)
        added = AddV2(biased, allow2)
        entered = Enter(added) frame_name=loop
        more = Placeholder dtype=bool
        merged = Merge(entered, next)
        left = Switch(merged, more)
        made = Mul(left:1, allow2)
        next = NextIteration({goes_round})"""
    colored = between(lines, "made")
    assert colored.colors("biased") == color
    if color == "F":
        assert colored.cause("biased") is Cause.REPEATED


@pytest.mark.parametrize("op", ["Floor(x)", "FloorMod(x, bias)", "Round(x)"])
def test_a_jump_sees_float32_where_float32_exists(op: str) -> None:
    colored = between(f"moved = Reshape(x, axis)\nmade = {op}", "made")
    assert colored.colors("made") == "F"
    assert colored.cause("made") is Cause.JUMP


def test_a_jump_may_see_what_a_product_has_made() -> None:
    assert between("made = Floor(allow1)", "made").colors("made") == "L"


def test_a_comparison_with_zero_is_no_jump() -> None:
    lines = """
        zero = Const value=0.0
        biased = BiasAdd(allow1, bias)
        {found} = Greater(biased, {than}) T=float32
        made = Select(found, biased, allow2) T=float32
    """
    for than, expected in (("zero", "L"), ("bias", "F")):
        colored = between(lines.format(found="found", than=than), "made")
        assert colored.colors("biased") == expected


@pytest.mark.parametrize(("value", "expected"), [(0.5, "L"), (0.999, "F")])
def test_a_constant_that_16_bits_hold_may_be_among_what_is_moved(
    value: float, expected: str
) -> None:
    colored = behind(
        f"bound = Const value={value}\nmade = Maximum(allow1, bound)", "made"
    )
    assert colored.colors("made") == expected


@pytest.mark.parametrize(
    "op", ["Pow(bias, allow1)", "Exp(allow1)", "ScatterNd(axis, allow1, axis)"]
)
def test_what_may_magnify_or_add_up_many_values_is_float32(op: str) -> None:
    assert between(f"made = {op}", "made").colors("made") == "F"


def test_what_is_fed_is_exact_whatever_would_have_made_it() -> None:
    graph = f"{BEFORE}\nsum = AddV2(allow1, allow2)\nfetch = Identity(sum)"
    assert color(graph, fetch="fetch").colors("sum") == "L"
    assert color(graph, fetch="fetch", feed="allow1").colors("sum") == "F"


def test_the_result_of_a_product_that_stays_float32_is_exact() -> None:
    graph = f"{BEFORE}\nsum = AddV2(allow1, allow2)\nfetch = Identity(sum)"
    colored = color(graph, fetch="fetch", exclude=("allow1",))
    assert colored.colors("allow1 allow2 sum") == "F L F"
    assert colored.cause("sum") is Cause.PROMOTED


def test_a_long_list_is_graded_in_one_go() -> None:
    count = 1500
    lines = ["array = TensorArrayV3(axis) dtype=float32", "flow0 = Identity(array:1)"]
    for i in range(count):
        lines += [
            f"flow{i + 1} = TensorArrayWriteV3(array, axis, allow1, flow{i})",
            f"read{i} = TensorArrayReadV3(array, axis, flow{count}) dtype=float32",
        ]
    begin = time.process_time()
    colored = between("\n".join(lines), "read0")
    assert colored.colors("read0") == "L"
    # Every member with every other would take a minute.
    assert time.process_time() - begin < 20


# The table.


def test_every_op_says_what_it_makes_of_errors() -> None:
    unsaid = {row.op for row in OP_TABLE if row.why.errors is None}
    assert unsaid == {"SaveV2", "_UnaryOpsComposition"}
    products = {row.op for row in OP_TABLE if row.why.errors is Errors.PRODUCT}
    allowed = {row.op for row in OP_TABLE if row.bfloat16 == "allow"}
    assert products - allowed == {op for op in RECURRENT_OPS if "Block" in op}
    assert allowed <= products


def test_a_dense_network_goes_low_between_its_products_alone() -> None:
    first, last = weights(8, 8), weights(8, 4)
    bias = tf.Variable(np.ones(8, np.float32))

    def run(x: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.sigmoid(tf.nn.bias_add(x @ first, bias))
        return tf.nn.softmax(tf.nn.bias_add(hidden @ last, bias[:4]))

    colored = colored_function(run, X)
    assert colored.low_ops("MatMul") == (2, 2)
    assert colored.low_ops("BiasAdd") == (1, 2)
    assert colored.low_ops("Sigmoid") == (1, 1)
    assert colored.low_ops("Softmax") == (0, 1)
