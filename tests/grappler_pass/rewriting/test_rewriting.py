"""What a rewrite does to a graph: casts, constants, fused ops, loops, marks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.framework import tensor_util

from grappler_pass.annotations import REWRITTEN
from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.errors import StageError
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite, Settings, optimize
from tests.grappler_pass.eligibility.test_variable_reads import READ_IN_LOOP, VARIABLE
from tests.soundness import casts_down, casts_up
from tests.text_graph import graph_from_text

MODEL = CostModel(DeviceProfile.load("cpu-avx512-bf16"))


def settings(low_dtype: str = "bfloat16", opt_level: str = "O2") -> Settings:
    lists = OpLists.for_dtype(low_dtype)
    models = {"CPU": MODEL, "GPU": MODEL}
    return Settings(low_dtype, lists, models, opt_level, home=Home("CPU"))


def rewrite(
    text: str, fetch: str, shapes: Shapes | None = None, **options: str
) -> Rewrite:
    before = graph_from_text(text)
    item = Item(fetch=tuple(fetch.split()))
    known = shapes or {}
    return optimize(before, item, settings(**options), shapes=lambda: known)


def node(graph_def: GraphDef, name: str):
    return next(n for n in graph_def.node if n.name == name)


def ops(graph_def: GraphDef) -> list[str]:
    return [n.op for n in graph_def.node]


def test_one_cast_up_serves_two_readers() -> None:
    made = rewrite(
        """
        x = Placeholder
        allow1 = MatMul(x, x)
        deny1 = Sin(allow1)
        deny2 = Cos(allow1)
        """,
        "deny1 deny2",
    )
    (up,) = casts_up(made.graph_def)
    (down,) = casts_down(made.graph_def)
    assert node(made.graph_def, "deny1").input[0] == up.name
    assert node(made.graph_def, "deny2").input[0] == up.name
    assert list(node(made.graph_def, "allow1").input) == [down.name] * 2
    assert (made.plan.casts, made.plan.casts_removed) == (2, 0)


def test_16_bits_cross_from_one_device_to_another() -> None:
    made = rewrite(
        """
        x = Placeholder @/device:CPU:1
        allow1 = MatMul(x, x) @/device:CPU:0
        deny1 = Sin(allow1) @/device:CPU:1
        """,
        "deny1",
    )
    made_casts = (*casts_down(made.graph_def), *casts_up(made.graph_def))
    assert [cast.device for cast in made_casts] == ["/device:CPU:1"] * 2


@pytest.mark.parametrize(
    ("low_dtype", "step"), [("bfloat16", 2.0**-7), ("float16", 2.0**-10)]
)
def test_a_value_becomes_the_nearest_one_in_16_bits(
    low_dtype: str, step: float
) -> None:
    text = "x = Placeholder\nw = Placeholder\nproduct = MatMul(x, w)"
    made = rewrite(f"{text}\nfetch = Sin(product)", "fetch", low_dtype=low_dtype)
    given = {"x:0": [[1 + 0.75 * step]], "w:0": [[1.0]]}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.graph_util.import_graph_def(made.graph_def, name="")
        (found,) = session.run(["product:0"], given)
    assert found.astype(np.float32) == 1 + step


def test_nothing_to_gain_returns_the_very_graph() -> None:
    before = graph_from_text("x = Placeholder\nclear1 = Relu(x)\nfetch = Sin(clear1)")
    made = optimize(before, Item(fetch=("fetch",)), settings(), shapes=dict)
    assert made.graph_def is before
    assert not made.changed and made.plan.is_empty


def test_a_second_run_changes_nothing() -> None:
    made = rewrite(
        "x = Placeholder\nallow1 = MatMul(x, x)\nfetch = Sin(allow1)", "fetch"
    )
    again = optimize(made.graph_def, Item(), settings(), shapes=dict)
    assert again.graph_def is made.graph_def and again.plan is None


def test_names_and_order_are_the_same_in_every_run() -> None:
    text = "x = Placeholder\nallow1 = MatMul(x, x)\nfetch = Sin(allow1)"
    assert rewrite(text, "fetch").graph_def == rewrite(text, "fetch").graph_def


def test_a_taken_name_is_not_used_twice() -> None:
    made = rewrite(
        """
        x = Placeholder
        x/tf_amp_cast_bfloat16 = Sin(x)
        allow1 = MatMul(x, x)
        fetch = Sin(allow1)
        """,
        "fetch x/tf_amp_cast_bfloat16",
    )
    names = [n.name for n in made.graph_def.node]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("low_dtype", ["bfloat16", "float16"])
def test_a_constant_is_cast_beforehand_and_counts_for_no_cast(low_dtype: str) -> None:
    before = graph_from_text("x = Placeholder\nweight = Const\nready = NoOp")
    weight = node(before, "weight")
    value = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    weight.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(value))
    weight.input.append("^ready")
    before.MergeFrom(
        graph_from_text(
            "x = Placeholder\nweight = Const\n"
            "allow1 = MatMul(x, weight)\nfetch = Sin(allow1)"
        )
    )
    del before.node[3:5]
    wanted, asked = settings(low_dtype), Item(fetch=("fetch",))
    rewrite = optimize(before, asked, wanted, shapes=dict)
    made = rewrite.graph_def
    low = node(made, node(made, "allow1").input[1])
    assert low.op == "Const" and list(low.input) == ["^ready"]
    assert rewrite.plan.casts == ops(made).count("Cast") == 2
    stored = dataclasses.replace(wanted, fold_constants=False)
    unfolded = optimize(before, asked, stored, shapes=dict)
    assert unfolded.plan.casts == ops(unfolded.graph_def).count("Cast") == 3
    rounded = tensor_util.MakeNdarray(low.attr["value"].tensor)
    assert rounded.dtype.name == low_dtype
    np.testing.assert_array_equal(rounded, value.astype(rounded.dtype))
    np.testing.assert_array_equal(
        tensor_util.MakeNdarray(node(made, "weight").attr["value"].tensor), value
    )


@pytest.mark.parametrize(
    "given",
    [
        "x = Const value=2.0",
        "y = Placeholder dtype=bfloat16\nx = Cast(y) SrcT=bfloat16 DstT=float",
    ],
    ids=["constant", "cast"],
)
def test_what_the_caller_feeds_is_read_itself(given: str) -> None:
    before = graph_from_text(
        f"{given}\nallow1 = MatMul(x, x)\nclear1 = Relu(allow1)\nfetch = Sin(clear1)"
    )
    fed = Item(fetch=("fetch",), feed=("x",))
    made = optimize(before, fed, settings(), shapes=dict)
    low = node(made.graph_def, node(made.graph_def, "allow1").input[0])
    assert (low.op, list(low.input)) == ("Cast", ["x"])
    assert (made.plan.casts, made.plan.casts_removed) == (2, 0)


def test_existing_casts_are_absorbed_on_both_sides() -> None:
    made = rewrite(
        """
        half = Placeholder dtype=bfloat16
        up = Cast(half) SrcT=bfloat16 DstT=float
        allow1 = MatMul(up, up)
        down = Cast(allow1) SrcT=float DstT=bfloat16
        wide = Cast(allow1) SrcT=float DstT=double
        """,
        "down wide",
    )
    # `down` and `wide` are fetched, so they stay; without that they are absorbed.
    assert list(node(made.graph_def, "allow1").input) == ["half", "half"]
    made = rewrite(
        """
        half = Placeholder dtype=bfloat16
        up = Cast(half) SrcT=bfloat16 DstT=float
        allow1 = MatMul(up, up)
        down = Cast(allow1) SrcT=float DstT=bfloat16
        wide = Cast(allow1) SrcT=float DstT=double
        fetch1 = Identity(down) T=bfloat16
        fetch2 = Identity(wide) T=double
        """,
        "fetch1 fetch2",
    )
    assert node(made.graph_def, "down").op == "Identity"
    assert node(made.graph_def, "wide").attr["SrcT"].type == 14
    # The given cast is left without readers; TensorFlow prunes it.
    assert [n.name for n in casts_up(made.graph_def)] == ["up"]
    assert casts_down(made.graph_def) == []
    assert made.plan.casts == 0 and made.plan.casts_removed == 3


def test_an_integer_cast_is_fused_only_where_float32_holds_it() -> None:
    text = """
        ids = Placeholder dtype={dtype}
        up = Cast(ids) SrcT={dtype} DstT=float
        allow1 = MatMul(up, up)
        fetch = Lgamma(allow1)
        """
    small = rewrite(text.format(dtype="int8"), "fetch").graph_def
    assert node(small, node(small, "allow1").input[0]).attr["SrcT"].type == 6
    large = rewrite(text.format(dtype="int32"), "fetch").graph_def
    assert node(large, node(large, "allow1").input[0]).input[0] == "up"


@pytest.mark.parametrize(
    ("bias_shape", "adding"),
    [((8,), "BiasAdd"), ((1, 1, 1, 1), "AddV2"), (None, "AddV2")],
)
def test_a_fused_convolution_without_bfloat16_is_split_into_its_parts(
    bias_shape: tuple[int, ...] | None, adding: str
) -> None:
    text = """
        x = Placeholder
        w = Placeholder
        b = Placeholder
        gate = NoOp
        conv = _FusedConv2D(x, w, b, ^gate) {attrs}
        after = MatMul(conv, w)
        fetch = Sin(after)
        """
    attrs = "fused_ops=BiasAdd,Relu num_args=1 TArgs=float strides=1,1,1,1 padding=SAME"
    made = rewrite(text.format(attrs=attrs), "fetch", {"b": (bias_shape,)}).graph_def
    assert "_FusedConv2D" not in ops(made)
    relu = node(made, "conv")
    bias = node(made, relu.input[0])
    conv = node(made, bias.input[0])
    assert (relu.op, bias.op, conv.op) == ("Relu", adding, "Conv2D")
    assert "^gate" in conv.input
    assert list(conv.attr["strides"].list.i) == [1, 1, 1, 1]
    assert {n.attr["T"].type for n in (relu, bias, conv)} == {14}


def test_what_was_fused_keeps_its_slope_as_a_part() -> None:
    attrs = "num_args=1 TArgs=float strides=1,1,1,1 padding=SAME leakyrelu_alpha=0.5"
    made = rewrite(
        f"""
        x = Placeholder
        w = Placeholder
        conv = _FusedConv2D(x, w, w) fused_ops=BiasAdd,LeakyRelu {attrs}
        after = MatMul(conv, w)
        fetch = Sin(after)
        """,
        "fetch",
    )
    part = node(made.graph_def, "conv")
    assert (part.op, part.attr["alpha"].f) == ("LeakyRelu", 0.5)


def test_of_the_last_product_what_is_fused_behind_it_stays_float32() -> None:
    text = """
        x = Placeholder
        w = Placeholder
        b = Placeholder
        product = _FusedMatMul(x, w, b) fused_ops=BiasAdd,Tanh num_args=1
        fetch = Sin(product)
        """
    made = rewrite(text, "fetch", {"b": ((8,),)}).graph_def
    tanh = node(made, "product")
    bias = node(made, tanh.input[0])
    cast = node(made, bias.input[0])
    matmul = node(made, cast.input[0])
    assert (tanh.op, bias.op, cast.op) == ("Tanh", "BiasAdd", "Cast")
    assert bias.input[1] == "b"
    assert {n.attr["T"].type for n in (tanh, bias)} == {1}
    assert (matmul.op, matmul.attr["T"].type) == ("MatMul", 14)


def test_a_fused_op_with_an_epilogue_of_no_kernel_stays() -> None:
    text = """
        x = Placeholder
        w = Placeholder
        b = Placeholder
        conv = _FusedConv2D(x, w, b) fused_ops=NoSuchEpilogue num_args=1 TArgs=float \
strides=1,1,1,1 padding=SAME
        fetch = Sin(conv)
        """
    assert not rewrite(text, "fetch").changed


def test_a_weight_read_in_a_loop_is_cast_once_outside_of_it() -> None:
    text = (
        VARIABLE
        + READ_IN_LOOP.format(constant="true")
        + """
        x = Placeholder
        enter_x = Enter(x) frame_name=loop
        merge_x = Merge(enter_x, next_x)
        switch_x = Switch(merge_x, cond)
        allow1 = MatMul(switch_x:1, read)
        next_x = NextIteration(allow1)
        exit_x = Exit(switch_x)
        fetch = Sin(exit_x)
        """
    )
    made = rewrite(text, "fetch").graph_def
    enter = node(made, node(made, "allow1").input[1])
    assert enter.op == "Enter" and enter.attr["is_constant"].b
    assert enter.attr["frame_name"].s == b"loop"
    cast = node(made, enter.input[0])
    outside = node(made, cast.input[0])
    assert (cast.op, outside.op) == ("Cast", "ReadVariableOp")
    assert list(outside.input) == ["v"]
    assert node(made, "add").input[2] == "^read"


def test_a_reader_of_another_cast_comes_after_its_own_read_if_others_use_that() -> None:
    text = """
        v = VarHandleOp shared_name=v
        one = Const
        x = Placeholder
        read1 = ReadVariableOp(v) dtype=float
        read2 = ReadVariableOp(v) dtype=float
        allow1 = MatMul(x, read1)
        allow2 = MatMul(allow1, read2)
        {other_reader}
        write = AssignVariableOp(v, one, ^allow1, ^allow2) dtype=float
        """
    shared = rewrite(text.format(other_reader=""), "write").graph_def
    assert list(node(shared, "allow2").input)[2:] == []
    mixed = rewrite(text.format(other_reader="deny1 = Sin(read2)"), "write deny1")
    assert list(node(mixed.graph_def, "allow2").input)[2:] == ["^read2"]
    casts = [n for n in casts_down(mixed.graph_def) if "read" in n.name]
    assert [n.input[0] for n in casts] == ["read1"]


@pytest.mark.parametrize(
    ("other_reader", "awaited"), [("", "^switch_i"), ("deny1 = Sin(read)", "^read")]
)
def test_a_reader_of_a_hoisted_cast_waits_for_what_its_read_waited_for(
    other_reader: str, awaited: str
) -> None:
    text = f"""
        {VARIABLE}
        {READ_IN_LOOP.format(constant="true")}
        x = Placeholder
        enter_x = Enter(x) frame_name=loop
        merge_x = Merge(enter_x, next_x)
        switch_x = Switch(merge_x, cond)
        {other_reader}
        allow1 = MatMul(switch_x:1, read)
        next_x = NextIteration(allow1)
        exit_x = Exit(switch_x)
        fetch = Sin(exit_x)
        """
    made = rewrite(text, "fetch").graph_def
    assert node(made, node(made, "allow1").input[1]).op == "Enter"
    assert list(node(made, "allow1").input)[2:] == [awaited]


def test_what_was_made_is_marked_and_keeps_its_stamp() -> None:
    before = graph_from_text(
        "x = Placeholder\nallow1 = MatMul(x, x)\nfetch = Sin(allow1)"
    )
    node(before, "x").attr["_tf_amp"].s = b"1:step"
    made = optimize(before, Item(fetch=("fetch",)), settings(), shapes=dict).graph_def
    (down,) = casts_down(made)
    assert down.attr["_tf_amp"].s == b"1:step"
    assert REWRITTEN in down.attr and REWRITTEN in node(made, "allow1").attr
    assert (
        REWRITTEN not in node(made, "x").attr
        and REWRITTEN not in node(before, "x").attr
    )


def test_o0_plans_nothing_and_says_so() -> None:
    made = rewrite(
        "x = Placeholder\nallow1 = MatMul(x, x)\nfetch = Sin(allow1)",
        "fetch",
        opt_level="O0",
    )
    assert not made.changed
    assert made.plan.filter(reason="level").decisions[0].slot.node == "allow1"


def test_a_small_product_is_left_alone_where_costs_decide() -> None:
    text = "x = Placeholder\nallow1 = MatMul(x, x)\nfetch = Sin(allow1)"
    before = graph_from_text(text)
    for size, changed in ((8, False), (1024, True)):
        shape = {name: ((size, size),) for name in ("x", "allow1", "fetch")}
        made = optimize(
            before,
            Item(fetch=("fetch",)),
            settings(opt_level="O1"),
            shapes=lambda shape=shape: shape,
        )
        assert made.changed is changed


def test_a_failing_stage_is_named() -> None:
    with pytest.raises(StageError, match="stage 'view': GraphError: input 'missing'"):
        optimize(graph_from_text("a = Relu(missing)"), Item(), settings(), shapes=dict)
