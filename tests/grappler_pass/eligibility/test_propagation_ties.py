"""Slots that are in 16 bits together: loops, lists of tensors, what selects values."""

from __future__ import annotations

import pytest

from grappler_pass.planning.plan import Cause
from tests.coloring import color
from tests.small_graphs import CHAIN, LIST, LOOP

# Loops and branches.

# What comes out is read by a product alone.
LOOP_BEFORE_PRODUCT = LOOP.replace(
    "fetch = Identity(exit)", "after = MatMul(exit, w)\nfetch = Identity(after)"
)


def test_the_ops_of_a_loop_variable_agree_and_an_invariant_is_free() -> None:
    colored = color(LOOP_BEFORE_PRODUCT, fetch="fetch")
    names = "enter merge switch next exit"
    assert colored.colors(names + " w_enter product") == "L L L L L L L"
    assert all(colored.tied("enter", name) for name in names.split()[1:])
    assert not colored.tied("w_enter", "enter")
    assert not colored.tied("product", "enter")


def test_one_fixed_part_keeps_the_whole_loop_variable() -> None:
    colored = color(LOOP_BEFORE_PRODUCT, fetch="fetch exit")
    assert colored.colors("enter merge switch next exit") == "F F F F F"
    assert colored.colors("product w_enter") == "L L"
    assert colored.cause("next") is Cause.TIED
    assert colored.cause("merge") is Cause.AFTER_PRODUCTS
    assert colored.detail("merge") == "exit"


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
    assert colored.colors("switch low high merge") == "L L F F"


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
    assert colored.colors("full filled infer") == "F F F"
    assert colored.cause("infer") is Cause.DENY_TAINT
    assert colored.cause("filled") is Cause.AFTER_PRODUCTS


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
        up = Conv2D(x, filter) strides=[1,2,2,1] padding=SAME
        grad = MaxPoolGrad(conv, kept, up) strides=[1,2,2,1] ksize=[1,2,2,1] \
padding=SAME
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
