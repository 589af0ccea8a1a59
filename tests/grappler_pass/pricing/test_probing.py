"""A node's probe holds what its time hangs on, and nothing else; or there is none."""

from __future__ import annotations

import pytest
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.costs.database.probe_calls import calls_from_probes
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Constant, Probe
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.type_slots import SlotTable
from grappler_pass.graph.view import GraphView
from grappler_pass.pricing.probing import MOST_CONSTANT_VALUES, probe_of
from tests.text_graph import graph_from_text

INPUTS = """
x = Placeholder shape=[32,48]
w = Placeholder shape=[48,16]
image = Placeholder shape=[2,8,8,3]
kernel = Placeholder shape=[3,3,3,5]
gradient = Placeholder shape=[2,8,8,5]
integers = Placeholder dtype=int32 shape=[2]
"""


def probe(lines: str, name: str = "y", shapes: Shapes | None = None) -> Probe | None:
    """Return the probe of a node with all of its floating slots open."""
    return probe_in(graph_from_text(INPUTS + lines), name, shapes)


def probe_in(
    graph_def: GraphDef, name: str, shapes: Shapes | None = None
) -> Probe | None:
    view = GraphView.from_graph_def(graph_def)
    slots = SlotTable.from_view(view)
    known = shapes_from_graph_def(graph_def) if shapes is None else shapes
    index = view.index[name]
    return probe_of(view, slots, known, index, slots.slots_of[index])


def test_a_probe_holds_attributes_and_shapes_but_not_the_dtype() -> None:
    found = probe("y = MatMul(x, w)")
    assert found is not None
    assert found.op == "MatMul"
    assert dict(found.attrs)["transpose_a"] == "b: false"
    assert found.dtype_attrs == (("T", 0),)
    assert found.inputs == (
        TensorSpec((32, 48), MEASURED_DTYPE),
        TensorSpec((48, 16), MEASURED_DTYPE),
    )
    assert Probe.from_key(found.key) == found


def test_names_devices_and_private_attributes_make_no_difference() -> None:
    graph = graph_from_text(
        INPUTS
        + """
        y = MatMul(x, w)
        scope/other = MatMul(x, w, ^y) _mark=7 @/device:CPU:0
        """
    )
    first, second = (probe_in(graph, name) for name in ("y", "scope/other"))
    assert first is not None and first == second
    assert first.key == second.key


def test_an_attribute_left_to_its_default_is_the_one_written_out() -> None:
    graph = graph_from_text(INPUTS + "y = MatMul(x, w)")
    plain = probe_in(graph, "y")
    for name in ("transpose_a", "grad_b"):
        del graph.node[-1].attr[name]
    assert probe_in(graph, "y") == plain


def test_a_transposed_product_is_another_probe() -> None:
    assert probe("y = MatMul(x, x) transpose_b=true") != probe("y = MatMul(x, w)")


def test_a_slot_that_stays_keeps_its_dtype_in_the_probe() -> None:
    graph = graph_from_text(INPUTS + "y = MatMul(x, w)")
    view = GraphView.from_graph_def(graph)
    slots = SlotTable.from_view(view)
    found = probe_of(view, slots, shapes_from_graph_def(graph), view.index["y"], ())
    assert found is not None
    assert found.dtype_attrs == ()
    assert dict(found.attrs)["T"] == "type: DT_FLOAT"
    assert {spec.dtype for spec in found.inputs} == {"float32"}


def test_a_constant_permutation_is_part_of_the_probe_behind_an_identity_too() -> None:
    lines = """
    perm = Const dtype=int32 value=[1,0]
    passed = Identity(perm) T=int32
    y = Transpose(x, {}) Tperm=int32
    """
    found = probe(lines.format("passed"))
    assert found is not None
    assert found.constants == ((1, Constant("int32", (2,), (1, 0))),)
    assert found == probe(lines.format("perm"))


def test_what_is_directed_by_a_variable_operand_has_no_probe() -> None:
    assert probe("y = Transpose(x, integers) Tperm=int32") is None
    assert probe("y = Sum(x, integers) Tidx=int32") is None


def test_integers_that_are_data_need_not_be_constant() -> None:
    found = probe(
        "axis = Const dtype=int32 value=0\n"
        "y = GatherV2(x, integers, axis) Tparams=float32 Tindices=int32 Taxis=int32"
    )
    assert found is not None
    assert found.constants == ((2, Constant("int32", (), (0,))),)
    assert found.inputs[1] == TensorSpec((2,), "int32")


def test_a_constant_of_many_values_is_data() -> None:
    many = ",".join(["0"] * (MOST_CONSTANT_VALUES + 1))
    found = probe(
        f"many = Const dtype=int32 value=[{many}]\n"
        "axis = Const dtype=int32 value=0\n"
        "y = GatherV2(x, many, axis) Tparams=float32 Tindices=int32 Taxis=int32"
    )
    assert found is not None
    assert [position for position, _ in found.constants] == [2]


def test_the_size_of_a_gradient_follows_from_its_shape() -> None:
    lines = """
    sizes = Placeholder dtype=int32 shape=[4]
    y = Conv2DBackpropInput(sizes, kernel, gradient) strides=[1,1,1,1] padding=SAME
    """
    graph = graph_from_text(INPUTS + lines)
    shapes = {**shapes_from_graph_def(graph), "y": ((2, 8, 8, 3),)}
    found = probe(lines, shapes=shapes)
    assert found is not None
    assert found.constants == ((0, Constant("int32", (4,), (2, 8, 8, 3))),)
    assert probe(lines, shapes={**shapes, "y": (None,)}) is None


@pytest.mark.parametrize(
    "line",
    [
        "y = RandomUniform(integers) T=int32 dtype=float32",
        "y = Identity(x)",
        "y = Reshape(x, integers) Tshape=int32",
        "y = NoSuchOp(x)",
        "handle = VarHandleOp dtype=float32 shape=[2]\n"
        "y = ReadVariableOp(handle) dtype=float32",
        "y = AsString(x)\nz = StringToNumber(y) out_type=float32",
    ],
    ids=["draws", "free", "view", "unknown op", "variable", "text"],
)
def test_what_cannot_be_run_alone_has_no_probe(line: str) -> None:
    graph = graph_from_text(INPUTS + line)
    name = graph.node[-1].name
    assert probe_in(graph, name, shapes={"x": ((32, 48),)}) is None


def test_a_tensor_of_unknown_rank_leaves_no_probe() -> None:
    assert probe("y = MatMul(x, w)", shapes={"x": (None,), "w": ((48, 16),)}) is None


def test_an_unknown_size_is_guessed_as_prices_guess_it() -> None:
    shapes = {"x": ((None, 48),), "w": ((48, 16),)}
    found = probe("y = MatMul(x, w)", shapes=shapes)
    assert found is not None
    assert found.inputs[0].shape == TensorSpec((None, 48), "").dims


def test_a_fused_op_is_a_probe_like_others() -> None:
    found = probe(
        "bias = Placeholder shape=[5]\n"
        "y = _FusedConv2D(image, kernel, bias) fused_ops=[BiasAdd,Relu] num_args=1 "
        "strides=[1,1,1,1] padding=SAME TArgs=[float32] num_host_args=0"
    )
    assert found is not None
    assert "fused_ops" in dict(found.attrs)
    assert {name for name, _ in found.dtype_attrs} == {"T", "TArgs"}


def test_a_probe_turns_back_into_the_call_it_was_made_of() -> None:
    found = probe(
        "y = Conv2D(image, kernel) strides=[1,2,2,1] padding=SAME data_format=NHWC"
    )
    assert found is not None
    calls = calls_from_probes([found])
    shapes = ((2, 8, 8, 3), (3, 3, 3, 5), (2, 4, 4, 5))
    *inputs, output = (TensorSpec(shape, "float32") for shape in shapes)
    attrs = {"strides": (1, 2, 2, 1), "data_format": b"NHWC"}
    assert calls == {found.key: OpCall("Conv2D", attrs, tuple(inputs), (output,))}


def test_a_scalar_operand_leaves_the_shape_of_the_result_known() -> None:
    scalar = TensorSpec((), MEASURED_DTYPE)
    row = TensorSpec((32, 48), MEASURED_DTYPE)
    found = Probe("Mul", (), (("T", 0),), (row, scalar))
    (call,) = calls_from_probes([found]).values()
    assert call.outputs == (TensorSpec((32, 48), "float32"),)


def test_one_probe_that_is_refused_does_not_spoil_the_others() -> None:
    good = probe("y = MatMul(x, w)")
    assert good is not None
    wrong = Probe("MatMul", good.attrs, good.dtype_attrs, (good.inputs[0],) * 2)
    garbled = Probe("MatMul", (("transpose_a", "no such"),), (), good.inputs)
    assert set(calls_from_probes([wrong, good, garbled])) == {good.key}


def test_a_probe_that_contradicts_itself_is_refused_alone() -> None:
    good = probe("y = MatMul(x, w)")
    assert good is not None
    types = (("T", "list { type: [DT_FLOAT, DT_FLOAT] }"),)
    nested = "list { func { name: 'f' attr { key: 'a' value { " * 400
    size = Constant("int32", (1,), (10**30,))
    spec = TensorSpec((1,), "int32")
    wrong = [
        Probe("MatMul", types, (("T", 5),), good.inputs),
        Probe("MatMul", (("transpose_a", nested),), (("T", 0),), good.inputs),
        Probe("Reshape", (), (("T", 0),), (good.inputs[0], spec), ((1, size),)),
        Probe("Relu", (), (("T", 0),), (TensorSpec((10**400,), "*"),)),
    ]
    for each in wrong:
        assert set(calls_from_probes([each, good])) == {good.key}
