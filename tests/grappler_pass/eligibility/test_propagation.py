"""Which slots may be in 16 bits: one small graph, written as text, for each rule."""

from __future__ import annotations

import pytest

from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, INFER
from grappler_pass.planning.plan import Cause
from tests.coloring import color
from tests.small_graphs import CHAIN, EXCLUSION, LIST, LOOP, STEP

# The flood from allow ops.


def test_what_lies_between_products_goes_low_and_nothing_before_or_behind() -> None:
    graph = (
        CHAIN
        + """
        infer0 = Mul(x, x)
        clear0 = Relu(infer0)
        allow2 = MatMul(clear0, w)
        bias = Placeholder
        infer1 = BiasAdd(allow2, bias)
        clear1 = Reshape(infer1, axis)
        infer2 = Tanh(clear1)
        allow3 = MatMul(infer2, w)
        infer3 = BiasAdd(allow3, bias)
        fetch = Identity(infer3)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("infer0 clear0 allow2") == "F L L"
    assert colored.colors("infer1 clear1 infer2 allow3") == "L L L L"
    assert colored.colors("infer3 fetch") == "F F"
    assert colored.cause("infer0") is Cause.NO_PRODUCT
    assert colored.cause("infer3") is Cause.AFTER_PRODUCTS
    assert colored.detail("infer3") == "fetch"


def test_deny_stops_the_flood_and_what_lies_behind_is_not_reached() -> None:
    graph = (
        CHAIN
        + """
        clear1 = Relu(allow1)
        deny1 = Sum(clear1, axis)
        clear2 = Relu(deny1)
        fetch = Identity(clear2)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("x allow1 clear1 deny1 clear2 fetch") == "F L L F F F"
    assert colored.cause("deny1") is Cause.DENY
    assert colored.cause("clear2") is Cause.AFTER_PRODUCTS
    assert colored.cause("fetch") is Cause.PRESERVED


def test_an_infer_op_behind_a_deny_op_is_tainted_and_a_clear_op_is_not() -> None:
    graph = (
        CHAIN
        + """
        deny1 = Sum(x, axis)
        clear1 = Relu(deny1)
        infer1 = AddV2(clear1, allow1)
        clear2 = Relu(infer1)
        allow2 = MatMul(clear2, w)
        infer2 = Mul(allow2, x)
        fetch = Identity(infer2)
    """
    )
    colored = color(graph, fetch="fetch")
    names = "deny1 clear1 infer1 clear2 allow2 infer2"
    assert colored.colors(names) == "F F F L L L"
    assert colored.cause("infer1") is Cause.DENY_TAINT
    assert colored.detail("infer1") == "deny1"
    assert colored.cause("clear1") is Cause.NO_PRODUCT


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bfloat16", "L L"), ("float16", "F F")]
)
def test_a_range_hazard_taints_in_float16_only(dtype: str, expected: str) -> None:
    graph = (
        CHAIN
        + """
        square1 = Square(allow1)
        infer1 = Mul(square1, x)
        allow2 = MatMul(infer1, w)
        fetch = Identity(allow2)
    """
    )
    assert (
        color(graph, fetch="fetch", low_dtype=dtype).colors("square1 infer1")
        == expected
    )


def test_without_an_allow_op_nothing_is_eligible() -> None:
    graph = """
        x = Placeholder
        clear1 = Relu(x)
        infer1 = Mul(clear1, x)
    """
    colored = color(graph, fetch="infer1")
    assert not any(colored.constraints.eligible)
    assert colored.constraints.allow == frozenset()


def test_every_slot_has_a_reason_and_allow_slots_are_named() -> None:
    colored = color(CHAIN, fetch="allow1")
    assert len(colored.constraints.reasons) == len(colored.slots.slots)
    eligible = color(CHAIN + "fetch = Identity(allow1)", fetch="fetch")
    (slot,) = eligible.constraints.allow
    assert eligible.slots.slots[slot].node == "allow1"
    assert eligible.detail("allow1").startswith("allow: matrix product")


def test_an_op_in_no_list_keeps_its_dtype() -> None:
    colored = color(CHAIN + "sine = Sin(allow1)\nfetch = Identity(sine)", fetch="fetch")
    assert colored.cause("sine") is Cause.NOT_LISTED


def test_constants_arguments_and_variables_are_fixed() -> None:
    graph = """
        arg = _Arg index=0
        handle = VarHandleOp dtype=float32 shape=[2,2]
        read = ReadVariableOp(handle)
        two = Const value=2.0
        product = MatMul(arg, read)
        twice = Mul(product, two)
        result = _Retval(twice) index=0
    """
    colored = color(graph)
    assert colored.colors("arg read two product twice result") == "F F F L L F"
    assert {colored.cause(n) for n in "arg read two result".split()} == {Cause.FIXED}


def test_a_reference_to_a_variable_is_fixed() -> None:
    graph = """
        variable = VariableV2 shape=[2,2]
        read = Identity(variable)
        product = MatMul(read, read)
        fetch = Identity(product)
    """
    colored = color(graph, fetch="fetch")
    assert colored.colors("variable read product") == "F L L"


# Types and kernels.


def test_a_users_own_16_bit_nodes_and_float64_are_untouched() -> None:
    graph = (
        CHAIN
        + """
        half1 = Cast(allow1) SrcT=float32 DstT=float16
        half2 = Relu(half1) T=float16
        double1 = Cast(allow1) SrcT=float32 DstT=float64
        double2 = Relu(double1) T=float64
        fetch = IdentityN(half2, double2) T=[float16,float64]
    """
    )
    colored = color(graph, fetch="fetch", low_dtype="float16")
    assert colored.colors("half1 half2 double1 double2") == "F F F F"
    assert colored.cause("half2") is Cause.NOT_FLOAT32
    assert colored.detail("double2") == "float64"
    assert colored.cause("half1.SrcT") is Cause.CAST


def test_statistics_of_a_batch_norm_stay_float32() -> None:
    graph = (
        CHAIN
        + """
        scale = Placeholder
        norm = FusedBatchNormV3(allow1, scale, scale, scale, scale)
        clear1 = Relu(norm)
        allow2 = MatMul(clear1, w)
        fetch = Identity(allow2)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("norm.T norm.U clear1") == "L F L"
    assert colored.cause("norm.U") is Cause.NO_KERNEL


def test_an_op_without_a_low_kernel_is_named_with_its_device() -> None:
    graph = (
        CHAIN
        + """
        lrn = LRN(allow1)
        gru = GRUBlockCell(allow1, w, w, w, w, w)
        fetch = IdentityN(lrn, gru:3)
    """
    )
    lists = OpLists.for_dtype("float16").edited(
        add={"clear": ["Diag", "Cholesky", "GRUBlockCell"]},
        remove={"deny": ["GRUBlockCell"]},
    )
    colored = color(graph, fetch="fetch", low_dtype="float16", lists=lists)
    assert colored.cause("gru") is Cause.NOT_ADMITTED
    with_cholesky = color(
        CHAIN + "root = Cholesky(allow1)\nfetch = Identity(root)",
        fetch="fetch",
        low_dtype="float16",
        lists=lists,
    )
    assert with_cholesky.cause("root") is Cause.NO_KERNEL
    assert with_cholesky.detail("root") == "Cholesky in float16 on CPU"


def test_a_node_on_a_device_without_kernels_stays() -> None:
    graph = """
        x = Placeholder
        here = MatMul(x, x)
        there = LRN(here) @/device:GPU:0
        fetch = Identity(there)
    """
    colored = color(graph, fetch="fetch")
    assert colored.colors("here") == "L"
    assert colored.cause("there") is Cause.NO_KERNEL
    assert "GPU" in colored.detail("there")


def test_lanes_of_identity_n_are_colored_one_by_one() -> None:
    graph = (
        CHAIN
        + """
        deny1 = Sum(x, axis)
        both = IdentityN(allow1, deny1)
        infer1 = Mul(both, x)
        infer2 = Mul(both:1, x)
        fetch = IdentityN(infer1, infer2)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("both.T both.T[1] infer1 infer2") == "L F L F"


def test_list_attributes_of_data_movement_go_low_as_one() -> None:
    graph = (
        CHAIN
        + """
        allow2 = MatMul(x, w)
        sum1 = AddN(allow1, allow2)
        joined = ConcatV2(sum1, x, axis)
        allow3 = MatMul(joined, w)
        fetch = Identity(allow3)
    """
    )
    assert color(graph, fetch="fetch").colors("sum1 joined") == "L L"


@pytest.mark.parametrize("list_name", [ALLOW, INFER])
def test_a_fused_convolution_goes_low_where_its_parts_can(list_name: str) -> None:
    graph = """
        x = Placeholder
        image = MatMul(x, x)
        filter = Placeholder
        bias = Placeholder
        conv = _FusedConv2D(image, filter, bias) num_args=1 fused_ops=[BiasAdd,Relu] \
strides=[1,1,1,1] padding=SAME
        odd = _FusedConv2D(image, filter, bias) num_args=1 fused_ops=[Frobnicate] \
strides=[1,1,1,1] padding=SAME
        after = MatMul(conv, x)
        fetch = IdentityN(after, odd)
    """
    op = ["_FusedConv2D"]
    lists = OpLists.for_dtype("bfloat16").edited(
        add={list_name: op}, remove={ALLOW: op} if list_name != ALLOW else None
    )
    colored = color(graph, fetch="fetch", lists=lists)
    assert colored.colors("conv.T conv.TArgs odd.T") == "L L F"
    (group,) = colored.constraints.ties
    assert {str(colored.slots.slots[s]) for s in group} == {"conv.T", "conv.TArgs"}


def test_operands_of_a_product_with_several_types_agree() -> None:
    graph = """
        x = Placeholder
        product = BatchMatMulV3(x, x)
        fetch = Identity(product)
    """
    colored = color(graph, fetch="fetch")
    assert colored.colors("product.Ta product.Tb product.Tout") == "L L L"
    assert len(colored.constraints.ties[0]) == 3


# Levels.


def test_o2_allows_what_o1_allows() -> None:
    for graph in (LOOP, LIST, STEP, EXCLUSION):
        one, two = color(graph, opt_level="O1"), color(graph, opt_level="O2")
        assert one.constraints == two.constraints


def test_o3_ignores_lists_but_no_hard_limit() -> None:
    graph = (
        STEP
        + """
        axis = Const dtype=int32
        deny1 = Sum(relu, axis)
        infer1 = Mul(deny1, x)
        sine = Sin(x)
        bits = Bitcast(x) type=int32
        range = Range(x, x, x) Tidx=float32
        marked = Mul(x, x) _tf_amp_barrier=true
        text = AsString(x)
        fetch = AddN(infer1, sine, marked, range)
    """
    )
    colored = color(graph, fetch="fetch bits text", opt_level="O3")
    assert colored.colors("deny1 infer1 sine forward") == "L L L L"
    assert colored.colors("stepped update marked fetch") == "F F F F"
    assert colored.colors("x w bits range text") == "F F F F F"
