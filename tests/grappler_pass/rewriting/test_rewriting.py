"""What a rewrite does to a graph: casts, constants, fused ops, loops, marks."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
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
from tests.soundness import casts_down
from tests.text_graph import graph_from_text, text_from_graph

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


# What is written of a node besides its name, op, inputs, types and device.
SHOWN = ("alpha", "frame_name", "is_constant")
CASES = pathlib.Path(__file__).with_name("cases.txt").read_text(encoding="utf-8")


def lines_of(graph_def: GraphDef) -> list[str]:
    """Return one line per node."""
    lines = []
    for line, each in zip(
        text_from_graph(graph_def).splitlines(), graph_def.node, strict=True
    ):
        shown = [name for name in SHOWN if name in each.attr]
        values = [(name, _value(each.attr[name])) for name in shown]
        lines.append(line + "".join(f" {name}={value}" for name, value in values))
    return lines


def _value(attr: AttrValue) -> str:
    match attr.WhichOneof("value"):
        case "f":
            return str(attr.f)
        case "b":
            return str(attr.b).lower()
    return str(attr.s.decode())


@pytest.mark.parametrize(
    "case", CASES.split("\n== ")[1:], ids=lambda case: case.partition("\n")[0]
)
def test_each_case_becomes_what_its_lines_say(case: str) -> None:
    (_, asked, *given), expected = (
        part.strip().splitlines() for part in case.split("-->")
    )
    options = {k: v.split(",") for k, _, v in (w.partition("=") for w in asked.split())}
    item = Item(tuple(options.pop("fetch")), tuple(options.pop("feed", ())))
    shapes = {name: (tuple(map(int, sizes)),) for name, sizes in options.items()}
    before = graph_from_text("\n".join(given))
    made = optimize(before, item, settings(), shapes=lambda: shapes)
    lines = lines_of(before)
    changed = [line for line in lines_of(made.graph_def) if line not in lines]
    counts = f"casts {made.plan.casts}, removed {made.plan.casts_removed}"
    assert [*changed, counts] == [line.strip() for line in expected]


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
