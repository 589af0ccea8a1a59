"""Which slots may be in 16 bits, beyond what `cases/*.txt` say."""

from __future__ import annotations

import pytest
import tensorflow as tf

from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, INFER
from grappler_pass.planning.plan import Cause
from tests.coloring import color
from tests.small_graphs import CHAIN, EXCLUSION, LIST, LOOP, STEP


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


def test_o2_allows_what_o1_allows() -> None:
    for graph in (LOOP, LIST, STEP, EXCLUSION):
        one, two = color(graph, opt_level="O1"), color(graph, opt_level="O2")
        assert one.constraints == two.constraints


@pytest.mark.parametrize("op", ["Elu", "Selu"])
def test_an_op_whose_kernel_cancels_stays_float32_at_every_level(op: str) -> None:
    kernel = getattr(tf.raw_ops, op)
    small = tf.constant([-1e-3])
    low = tf.cast(kernel(features=tf.cast(small, "bfloat16")), "float32")
    assert abs(low / kernel(features=small) - 1) > 0.5, "the rule is not needed"

    graph = f"{CHAIN}\nact = {op}(allow1)\nfetch = Identity(act)"
    for level in ("O2", "O3"):
        colored = color(graph, fetch="fetch", opt_level=level)
        assert colored.colors("allow1 act") == "L F"
        assert colored.cause("act") is Cause.IMPRECISE
