"""Which slots may go low: one small graph, written as text, for each rule."""

from __future__ import annotations

import pytest

from grappler_pass.op_lists import OpLists
from grappler_pass.plan import Cause
from tests.coloring import color

CHAIN = """
    x = Placeholder
    w = Placeholder
    axis = Const dtype=int32
    allow1 = MatMul(x, w)
"""


# The flood from allow ops.


def test_low_precision_floods_both_ways_through_clear_and_infer() -> None:
    graph = (
        CHAIN
        + """
        clear0 = Relu(x)
        infer0 = Mul(clear0, x)
        allow2 = MatMul(infer0, w)
        infer1 = AddV2(allow2, x)
        clear1 = Reshape(infer1, axis)
        fetch = Identity(clear1)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("clear0 infer0 allow2 infer1 clear1 fetch") == "L L L L L F"


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
    assert colored.cause("clear2") is Cause.NOT_REACHED
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
        infer2 = AddV2(allow2, x)
        fetch = Identity(infer2)
    """
    )
    colored = color(graph, fetch="fetch")
    names = "deny1 clear1 infer1 clear2 allow2 infer2"
    assert colored.colors(names) == "F F F L L L"
    assert colored.cause("infer1") is Cause.DENY_TAINT
    assert colored.detail("infer1") == "deny1"
    assert colored.cause("clear1") is Cause.NOT_REACHED


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bfloat16", "L L"), ("float16", "F F")]
)
def test_a_range_hazard_taints_in_float16_only(dtype: str, expected: str) -> None:
    graph = (
        CHAIN
        + """
        exp1 = Exp(allow1)
        infer1 = AddV2(exp1, x)
        fetch = Identity(infer1)
    """
    )
    assert (
        color(graph, fetch="fetch", low_dtype=dtype).colors("exp1 infer1") == expected
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
        fetch = Identity(clear1)
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
    lists = OpLists.for_dtype("float16").edited(add={"clear": ["Diag", "Cholesky"]})
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
        infer1 = AddV2(both, x)
        infer2 = AddV2(both:1, x)
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
        fetch = Identity(joined)
    """
    )
    assert color(graph, fetch="fetch").colors("sum1 joined") == "L L"


def test_a_fused_convolution_goes_low_where_its_parts_can() -> None:
    graph = """
        image = Placeholder
        filter = Placeholder
        bias = Placeholder
        conv = _FusedConv2D(image, filter, bias) num_args=1 fused_ops=[BiasAdd,Relu] \
strides=[1,1,1,1] padding=SAME
        odd = _FusedConv2D(image, filter, bias) num_args=1 fused_ops=[Frobnicate] \
strides=[1,1,1,1] padding=SAME
        fetch = IdentityN(conv, odd)
    """
    colored = color(graph, fetch="fetch")
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


# What the caller holds.


@pytest.mark.parametrize("where", ["fetch", "feed"])
def test_fetched_and_fed_nodes_keep_their_dtype(where: str) -> None:
    graph = (
        CHAIN + "clear1 = Relu(allow1)\nallow2 = MatMul(clear1, w)\nend = Relu(allow2)"
    )
    colored = color(graph, **{where: "clear1 end"})
    assert colored.colors("allow1 clear1 allow2") == "L F L"
    assert colored.cause("clear1") is Cause.PRESERVED


def test_nothing_behind_a_barrier_goes_low() -> None:
    graph = (
        CHAIN
        + """
        inverse = Placeholder
        unscaled = Mul(allow1, inverse) _tf_amp_barrier=true
        clear1 = Relu(unscaled)
        allow2 = MatMul(clear1, w)
        fetch = Identity(allow2)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("allow1 unscaled clear1 allow2") == "L F F F"
    assert colored.cause("allow2") is Cause.BARRIER
    assert colored.detail("allow2") == "unscaled"


def test_a_barrier_mark_that_is_false_stops_nothing() -> None:
    graph = (
        CHAIN
        + """
        scaled = Mul(allow1, x) _tf_amp_barrier=false
        fetch = Identity(scaled)
    """
    )
    assert color(graph, fetch="fetch").colors("scaled") == "L"


# The user's opt-outs.

EXCLUSION = """
    x = Placeholder
    w = Placeholder
    model/body/MatMul = MatMul(x, w)
    model/head/MatMul = MatMul(model/body/MatMul, w)
    gradient_tape/model/head/MatMul/MatMul_1 = MatMul(x, w)
    gradient_tape/model/body/MatMul/MatMul_1 = MatMul(x, w)
    train/gradients_1/model/head/MatMul_grad/MatMul = MatMul(x, w)
    PartitionedCall/gradient_tape/model/head/MatMul/MatMul = MatMul(x, w)
    fetch = AddN(model/head/MatMul, gradient_tape/model/head/MatMul/MatMul_1, \
gradient_tape/model/body/MatMul/MatMul_1, \
train/gradients_1/model/head/MatMul_grad/MatMul, \
PartitionedCall/gradient_tape/model/head/MatMul/MatMul)
"""
EXCLUSION_NAMES = """model/body/MatMul gradient_tape/model/body/MatMul/MatMul_1
    model/head/MatMul gradient_tape/model/head/MatMul/MatMul_1
    train/gradients_1/model/head/MatMul_grad/MatMul
    PartitionedCall/gradient_tape/model/head/MatMul/MatMul"""


@pytest.mark.parametrize(
    "pattern", ["head", "^model/head/", "head/MatMul$", r"^model/head/MatMul$"]
)
def test_an_excluded_op_takes_its_gradients_along(pattern: str) -> None:
    colored = color(EXCLUSION, fetch="fetch", exclude=(pattern,))
    assert colored.colors(EXCLUSION_NAMES) == "L L F F F F"
    assert colored.detail("model/head/MatMul") == pattern
    assert colored.cause("model/head/MatMul") is Cause.EXCLUDED


def test_a_pattern_that_finds_nothing_excludes_nothing() -> None:
    colored = color(EXCLUSION, fetch="fetch", exclude=("^head", "tail"))
    assert colored.colors(EXCLUSION_NAMES) == "L L L L L L"


# Updates of variables.

STEP = """
    handle = VarHandleOp dtype=float32 shape=[2,2]
    moment = VarHandleOp dtype=float32 shape=[2,2]
    rate = Placeholder
    x = Placeholder
    w = ReadVariableOp(handle)
    forward = MatMul(x, w)
    relu = Relu(forward)
    relu_grad = ReluGrad(relu, relu)
    bias_grad = BiasAddGrad(relu_grad)
    weight_grad = MatMul(x, relu_grad) transpose_a=true
    square = Mul(weight_grad, weight_grad)
    scaled = Mul(rate, square)
    moved = AssignAddVariableOp(moment, scaled)
    stepped = Mul(rate, weight_grad)
    update = AssignSubVariableOp(handle, stepped)
    bias_step = Mul(rate, bias_grad)
    bias_update = AssignSubVariableOp(handle, bias_step)
"""


@pytest.mark.parametrize("fetch", ["", "relu"])
def test_optimizer_arithmetic_stays_whatever_the_step_returns(fetch: str) -> None:
    colored = color(STEP, fetch=fetch)
    arithmetic = "square scaled stepped bias_step"
    assert colored.colors(arithmetic) == "F F F F"
    assert {colored.cause(n) for n in arithmetic.split()} == {Cause.STATE_UPDATE}
    assert colored.detail("scaled") == "moved"
    assert colored.colors("forward relu_grad bias_grad weight_grad") == "L L L L"


def test_what_is_also_read_elsewhere_is_no_update() -> None:
    graph = (
        STEP + "norm = Relu(stepped)\nallow2 = MatMul(norm, x)\nfetch = Relu(allow2)"
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("stepped square") == "L F"


def test_a_dead_reader_does_not_keep_a_node_out_of_the_update() -> None:
    graph = STEP + "unused = Relu(stepped)"
    assert color(graph, fetch="relu").colors("stepped") == "F"


def test_an_accumulation_in_a_loop_belongs_to_the_update_it_feeds() -> None:
    graph = """
        handle = VarHandleOp dtype=float32 shape=[2,2]
        x = Placeholder
        more = Placeholder dtype=bool
        grad = MatMul(x, x)
        enter = Enter(grad) frame_name=loop
        merge = Merge(enter, next)
        go = LoopCond(more)
        switch = Switch(merge, go)
        body = Mul(switch:1, switch:1)
        next = NextIteration(body)
        exit = Exit(switch)
        update = AssignSubVariableOp(handle, exit)
    """
    colored = color(graph)
    assert colored.colors("grad enter merge switch body next exit") == "L F F F F F F"
    assert colored.cause("body") is Cause.STATE_UPDATE


def test_reference_variables_have_updates_too() -> None:
    graph = """
        variable = VariableV2 shape=[2,2]
        rate = Placeholder
        x = Placeholder
        grad = MatMul(x, x)
        scaled = Mul(grad, rate)
        update = ApplyGradientDescent(variable, rate, scaled)
        index = Placeholder dtype=int32
        rows = Mul(grad, rate)
        scatter = ScatterSub(variable, index, rows)
        pure = ScatterNd(index, grad, index) Tindices=int32
        fetch = Identity(pure)
    """
    colored = color(graph, fetch="fetch update scatter")
    assert colored.colors("grad scaled rows pure") == "L F F L"


# Loops and branches.

LOOP = """
    x = Placeholder
    w = Placeholder
    limit = Const dtype=int32 value=3
    one = Const dtype=int32 value=1
    zero = Const dtype=int32 value=0
    i_enter = Enter(zero) frame_name=loop T=int32
    enter = Enter(x) frame_name=loop
    w_enter = Enter(w) frame_name=loop is_constant=true
    i_merge = Merge(i_enter, i_next) T=int32
    merge = Merge(enter, next)
    less = Less(i_merge, limit) T=int32
    go = LoopCond(less)
    i_switch = Switch(i_merge, go) T=int32
    i_add = AddV2(i_switch:1, one) T=int32
    i_next = NextIteration(i_add) T=int32
    switch = Switch(merge, go)
    product = MatMul(switch:1, w_enter)
    next = NextIteration(product)
    exit = Exit(switch)
    fetch = Identity(exit)
"""


def test_the_ops_of_a_loop_variable_agree_and_an_invariant_is_free() -> None:
    colored = color(LOOP, fetch="fetch")
    names = "enter merge switch next exit"
    assert colored.colors(names + " w_enter product") == "L L L L L L L"
    assert all(colored.tied("enter", name) for name in names.split()[1:])
    assert not colored.tied("w_enter", "enter")
    assert not colored.tied("product", "enter")


def test_one_fixed_part_keeps_the_whole_loop_variable() -> None:
    colored = color(LOOP, fetch="fetch exit")
    assert colored.colors("enter merge switch next exit") == "F F F F F"
    assert colored.colors("product w_enter") == "L L"
    assert colored.cause("merge") is Cause.TIED
    assert colored.detail("merge") == "exit.T"


def test_branches_are_not_tied() -> None:
    graph = (
        CHAIN
        + """
        which = Placeholder dtype=bool
        switch = Switch(allow1, which)
        low = MatMul(switch, w)
        high = Sum(switch:1, axis)
        merge = Merge(low, high)
        fetch = Identity(merge)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.constraints.ties == ()
    assert colored.colors("switch low high merge") == "L L F L"


def test_what_only_anchors_control_edges_to_a_branch_goes_with_it() -> None:
    graph = (
        CHAIN
        + """
        which = Placeholder dtype=bool
        switch = Switch(allow1, which)
        low = MatMul(switch:1, w)
        anchor = Identity(switch)
        constant = Const(^anchor) value=[[1.0]]
        read = Identity(switch)
        high = AddV2(read, constant)
        merge = Merge(low, high)
        fetch = Identity(merge)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.tied("anchor", "switch")
    assert not colored.tied("read", "switch")


# Lists of tensors.

LIST = """
    x = Placeholder
    count = Const dtype=int32 value=2
    shape = Const dtype=int32 value=[2,2]
    zero = Const dtype=int32 value=0
    empty = TensorListReserve(shape, count) shape_type=int32 element_dtype=float32
    product = MatMul(x, x)
    full = TensorListSetItem(empty, zero, product)
    passed = Identity(full) T=variant
    item = TensorListGetItem(passed, zero, shape)
    all = TensorListStack(passed, shape)
    fetch = IdentityN(item, all)
"""


def test_readers_and_writers_of_a_list_agree_and_are_reached_through_it() -> None:
    colored = color(LIST, fetch="fetch")
    assert colored.colors("empty product full item all") == "L L L L L"
    assert all(colored.tied("empty", name) for name in ("full", "item", "all"))


def test_a_list_of_which_one_reader_is_fixed_stays_float32() -> None:
    colored = color(LIST, fetch="fetch all")
    assert colored.colors("empty product full item all") == "F L F F F"
    assert colored.cause("item") is Cause.LIST_ESCAPES


@pytest.mark.parametrize(
    "escape",
    [
        "out = _Retval(passed) T=variant index=0",
        "out = Pack(passed) T=variant",
        "out = PartitionedCall(passed) Tin=[variant] Tout=[float32] f=callee",
        "out = UnknownOp(passed)",
        "out = TensorListPushBack(empty2, passed) element_dtype=variant\n"
        "empty2 = EmptyTensorList(shape, zero) shape_type=int32 element_dtype=variant",
    ],
)
def test_a_list_that_escapes_stays_float32(escape: str) -> None:
    colored = color(LIST + escape, fetch="fetch out")
    assert colored.colors("empty product full item all") == "F L F F F"
    assert colored.cause("full") is Cause.LIST_ESCAPES
    assert colored.detail("full") == "out"


def test_a_list_that_comes_from_outside_stays_float32() -> None:
    graph = """
        handle = _Arg T=variant index=0
        zero = Const dtype=int32
        item = TensorListGetItem(handle, zero, zero)
        product = MatMul(item, item)
        fetch = Identity(product)
    """
    colored = color(graph, fetch="fetch")
    assert colored.colors("item product") == "F L"
    assert colored.detail("item") == "handle"


def test_a_list_in_a_loop_is_one_list() -> None:
    graph = """
        x = Placeholder
        more = Placeholder dtype=bool
        zero = Const dtype=int32
        empty = EmptyTensorList(zero, zero) shape_type=int32 element_dtype=float32
        enter = Enter(empty) T=variant frame_name=loop
        x_enter = Enter(x) frame_name=loop is_constant=true
        merge = Merge(enter, next) T=variant
        go = LoopCond(more)
        switch = Switch(merge, go) T=variant
        product = MatMul(x_enter, x_enter)
        push = TensorListPushBack(switch:1, product)
        next = NextIteration(push) T=variant
        exit = Exit(switch) T=variant
        pop = TensorListPopBack(exit, zero)
        other = EmptyTensorList(zero, zero) shape_type=int32 element_dtype=float32
        other_pop = TensorListPopBack(other, zero)
        fetch = IdentityN(pop:1, other_pop:1)
    """
    colored = color(graph, fetch="fetch")
    assert colored.colors("empty push pop other other_pop") == "L L L F F"
    assert colored.tied("empty", "pop")


def test_a_tensor_array_and_its_gradient_are_one_list() -> None:
    graph = """
        x = Placeholder
        size = Const dtype=int32 value=1
        zero = Const dtype=int32
        array = TensorArrayV3(size) dtype=float32
        product = MatMul(x, x)
        write = TensorArrayWriteV3(array, zero, product, array:1)
        read = TensorArrayReadV3(array, zero, write) dtype=float32
        grad = TensorArrayGradV3(array, write) source=gradients
        grad_read = TensorArrayReadV3(grad, zero, grad:1) dtype=float32
        fetch = IdentityN(read, grad_read)
    """
    colored = color(graph, fetch="fetch")
    assert colored.colors("array write read grad_read") == "L L L L"
    assert colored.tied("array", "grad_read")


def test_the_stack_that_a_v1_gradient_loop_keeps_is_one_list() -> None:
    graph = """
        x = Placeholder
        size = Const dtype=int32 value=1
        stack = StackV2(size) elem_type=float32
        product = MatMul(x, x)
        push = StackPushV2(stack, product)
        pop = StackPopV2(stack, ^push) elem_type=float32
        fetch = IdentityN(push, pop)
    """
    colored = color(graph, fetch="fetch")
    assert colored.colors("stack push pop") == "L L L"
    assert colored.tied("stack", "push") and colored.tied("stack", "pop")


def test_taint_crosses_a_list() -> None:
    graph = (
        LIST
        + """
        deny = Sum(x, zero)
        filled = TensorListSetItem(full, zero, deny)
        infer = AddV2(item, x)
        fetch2 = Identity(infer)
        fetch3 = TensorListStack(filled, shape)
        fetch4 = Identity(fetch3)
    """
    )
    colored = color(graph, fetch="fetch fetch2 fetch4")
    assert colored.colors("full filled infer") == "L L F"
    assert colored.cause("infer") is Cause.DENY_TAINT


# What finds values again that another op selected.

MAXIMUM = (
    CHAIN
    + """
    highest = Max(allow1, axis)
    shaped = Reshape(highest, axis)
    found = Equal({}, shaped)
    fetch = Identity(found) T=bool
    up = Mul(highest, highest)
    fetch2 = Identity(up)
"""
)


def test_the_gradient_of_a_maximum_compares_in_the_maximums_dtype() -> None:
    colored = color(MAXIMUM.format("allow1"), fetch="fetch fetch2")
    assert colored.colors("highest shaped found") == "L L L"
    assert colored.tied("highest", "found")


def test_a_maximum_stays_float32_with_a_comparison_that_must() -> None:
    colored = color(MAXIMUM.format("x"), fetch="fetch fetch2 found")
    assert colored.colors("allow1 highest found") == "L F F"
    assert colored.cause("highest") is Cause.TIED


def test_a_pooling_and_its_gradient_agree() -> None:
    graph = """
        x = Placeholder
        filter = Placeholder
        conv = Conv2D(x, filter) strides=[1,1,1,1] padding=SAME
        pool = MaxPool(conv) strides=[1,2,2,1] ksize=[1,2,2,1] padding=SAME
        kept = Identity(pool)
        grad = MaxPoolGrad(conv, kept, x) strides=[1,2,2,1] ksize=[1,2,2,1] padding=SAME
        fetch = IdentityN(grad, pool)
    """
    colored = color(graph, fetch="fetch")
    assert colored.tied("pool", "grad")


def test_comparisons_of_other_values_are_not_tied() -> None:
    graph = (
        CHAIN
        + """
        highest = Max(allow1, axis)
        sum = AddV2(highest, x)
        found = Greater(sum, allow1)
        fetch = Identity(found) T=bool
        fetch2 = Identity(highest)
    """
    )
    assert color(graph, fetch="fetch fetch2").constraints.ties == ()


# Exact values and ranges.


def test_whole_numbers_on_their_way_to_an_index_stay_exact() -> None:
    graph = (
        CHAIN
        + """
        ids = Placeholder dtype=int32
        as_float = Cast(ids) SrcT=int32 DstT=float32
        joined = Mul(as_float, allow1)
        clear1 = Reshape(joined, axis)
        as_int = Cast(clear1) SrcT=float32 DstT=int32
        rows = GatherV2(w, as_int, axis) Tindices=int32 Taxis=int32
        allow2 = MatMul(rows, w)
        fetch = Identity(allow2)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("joined clear1 rows allow2") == "F F L L"
    assert colored.cause("clear1") is Cause.EXACT


def test_ids_fed_as_float32_stay_exact_beside_features() -> None:
    graph = (
        CHAIN
        + """
        flat = Reshape(x, axis)
        ids = Cast(flat) SrcT=float32 DstT=int32
        allow2 = MatMul(flat, w)
        fetch = Identity(allow2)
    """
    )
    colored = color(graph, fetch="fetch ids")
    assert colored.colors("flat allow2") == "F L"


def test_bytes_become_features() -> None:
    graph = (
        CHAIN
        + """
        image = Placeholder dtype=uint8
        as_float = Cast(image) SrcT=uint8 DstT=float32
        scaled = Mul(as_float, x)
        allow2 = MatMul(scaled, w)
        fetch = Identity(allow2)
    """
    )
    assert color(graph, fetch="fetch").colors("scaled allow2") == "L L"


def test_positions_that_become_angles_stay_exact_even_in_a_product() -> None:
    graph = """
        positions = Placeholder dtype=int32
        frequencies = Placeholder
        axis = Const dtype=int32
        as_float = Cast(positions) SrcT=int32 DstT=float32
        angles = Einsum(as_float, frequencies) equation=i,j->ij
        both = ConcatV2(angles, angles, axis)
        cosine = Cos(both)
        plain = Einsum(as_float, frequencies) equation=i,j->ij
        fetch = IdentityN(cosine, plain)
    """
    colored = color(graph, fetch="fetch")
    assert colored.colors("angles both plain") == "F F L"
    assert colored.cause("angles") is Cause.EXACT


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_random_draws_are_compared_exactly(level: str) -> None:
    graph = (
        CHAIN
        + """
        shape = Const dtype=int32
        draw = RandomUniform(shape) T=int32
        shifted = AddV2(draw, allow1)
        keep = GreaterEqual(shifted, x)
        mask = Cast(keep) SrcT=bool DstT=float32
        dropped = Mul(allow1, mask)
        fetch = Identity(dropped)
    """
    )
    colored = color(graph, fetch="fetch", opt_level=level)
    assert colored.colors("draw shifted keep dropped") == "F F F L"
    assert colored.cause("keep") is Cause.EXACT


@pytest.mark.parametrize("op", ["Floor", "Log"])
def test_a_draw_just_below_one_is_not_rounded_to_one(op: str) -> None:
    graph = (
        CHAIN
        + f"""
        shape = Const dtype=int32
        draw = RandomUniform(shape) T=int32
        moved = Reshape(draw, shape)
        result = {op}(moved)
        dropped = Mul(allow1, result)
        fetch = Identity(dropped)
    """
    )
    colored = color(graph, fetch="fetch")
    assert colored.colors("moved result dropped") == "F F L"


MASKED = """
    x = Placeholder
    w = Placeholder
    large = Const value={}
    scores = MatMul(x, w)
    bias = Mul(x, large)
    masked = AddV2(scores, bias)
    clear1 = Maximum(masked, x)
    weights = Softmax(clear1)
    context = MatMul(weights, w)
    fetch = Identity(context)
"""
MASKED_NAMES = "scores bias masked clear1 weights context"


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ("-1e9", "float16", "L F F F F L"),
        ("-1e9", "bfloat16", "L L L L L L"),
        ("-3.4028235e38", "bfloat16", "L F F F F L"),
        ("-inf", "float16", "L L L L L L"),
        ("1e-7", "float16", "L F F F F L"),
        ("1e-7", "bfloat16", "L L L L L L"),
        ("0.125", "float16", "L L L L L L"),
    ],
)
def test_a_constant_that_does_not_fit_keeps_its_readers(
    value: str, dtype: str, expected: str
) -> None:
    colored = color(MASKED.format(value), fetch="fetch", low_dtype=dtype)
    assert colored.colors(MASKED_NAMES) == expected


def test_a_product_that_reads_a_large_constant_unchanged_stays() -> None:
    graph = """
        x = Placeholder
        large = Const value=[1.0,1e9]
        column = Reshape(large, axis)
        axis = Const dtype=int32
        product = MatMul(x, column)
        other = MatMul(product, x)
        fetch = Identity(other)
    """
    colored = color(graph, fetch="fetch", low_dtype="float16")
    assert colored.colors("product other") == "F L"
    assert colored.cause("product") is Cause.RANGE
    assert colored.detail("product") == "large"


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
