"""Layouts chosen anew: what is asked, what it costs, and what is made of the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import DeviceProfile, OpCall, Price
from grappler_pass.graph.editing import new_constant, new_node
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Graph, Item, Reader
from grappler_pass.pipeline import Rewrite, optimize
from grappler_pass.planning.draft import Settings
from grappler_pass.planning.plan import Cause
from grappler_pass.rewriting.layouts import fix_axes, without_pairs
from tests.text_graph import graph_from_text, text_from_graph

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


@dataclasses.dataclass(frozen=True)
class Prices:
    """A GPU on which products take a tenth of a second less in 16 bits.

    Attributes:
      transpose: seconds of a transpose.
    """

    transpose: float
    profile: DeviceProfile = dataclasses.field(
        default_factory=lambda: DeviceProfile.load("v100")
    )

    @property
    def of_device(self) -> Prices:
        """The same: no start of an op counts."""
        return self

    def price(self, call: OpCall, dtype: str) -> Price:
        """Return seconds of what is looked at here."""
        if call.op == "Transpose":
            return Price(self.transpose, "profile", 0.01)
        seconds = 0.2 if call.op == "Conv2D" else 0.0
        return Price(seconds / (1 if dtype == "float32" else 2), "profile", 0.01)

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return next to nothing."""
        return Price(1e-9, "profile", 0.01)


def convolution() -> GraphDef:
    """Return a convolution on a GPU that is written with channels first."""
    return graph_from_text(
        f"""
        x = Placeholder shape=[8,64,32,32] @{GPU}
        w = Placeholder shape=[3,3,64,64] @{GPU}
        conv = Conv2D(x, w) strides=[1,1,1,1] padding=SAME data_format=NCHW @{GPU}
        y = Identity(conv) @{GPU}
        """
    )


def transposed(graph_def: GraphDef, kept: tuple[str, ...]) -> GraphDef:
    """Return a graph with transposes around its convolution, as TensorFlow would."""
    graph = Graph(graph_def)
    conv, readers = graph.edit("conv"), graph.readers(graph.port("conv"))
    conv.attr["data_format"].s = b"NHWC"
    dtype = conv.attr["T"].type
    for name, order, source in (
        ("before", [0, 2, 3, 1], conv.input[0]),
        ("after", [0, 3, 1, 2], "conv"),
    ):
        axes = graph.add(new_constant(f"{name}/axes", order, device=GPU))
        types = {"T": dtype, "Tperm": types_pb2.DT_INT32}
        graph.add(new_node("Transpose", name, [source, axes], GPU, **types))
    graph.read(Reader(graph.index["conv"], 0), "before")
    for reader in readers:
        graph.read(reader, "after")
    return graph.to_graph_def()


def rewritten(
    transpose: float,
    layouts: Callable[[GraphDef, tuple[str, ...]], GraphDef | None] | None = transposed,
    level: str = "O1",
) -> Rewrite:
    """Return what becomes of the convolution where a transpose takes so long."""
    graph_def = convolution()
    prices = Prices(transpose)
    settings = Settings(
        "float16",
        OpLists.for_dtype("float16"),
        {"CPU": prices, "GPU": prices},
        opt_level=level,
        layouts=layouts,
    )
    shapes = shapes_from_graph_def(graph_def)
    return optimize(graph_def, Item(fetch=("y",)), settings, shapes=lambda: shapes)


@pytest.fixture(autouse=True)
def kernels_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the definitions of ops tell which types they have on GPUs."""
    monkeypatch.setattr("grappler_pass.graph.type_slots.ABSENT_GPU", "GPU")
    from grappler_pass.graph.type_slots import kernel_exists

    monkeypatch.setattr(
        "grappler_pass.eligibility.known_wrong.kernel_exists",
        kernel_exists.__wrapped__,
    )


def test_the_plan_is_charged_for_transposes() -> None:
    left_alone = rewritten(0.01, layouts=None).plan
    laid_out = rewritten(0.01).plan
    assert left_alone is not None and laid_out is not None
    added = laid_out.seconds_after - left_alone.seconds_after
    assert added == pytest.approx(2 * 0.01)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_plan_that_transposes_eat_up_is_withdrawn_where_costs_decide(
    level: str,
) -> None:
    rewrite = rewritten(0.1, level=level)
    assert rewrite.plan is not None
    assert rewrite.changed == (level == "O2")
    conv = next(d for d in rewrite.plan.decisions if d.op == "Conv2D")
    assert conv.reason.cause is (Cause.MARGIN if level == "O1" else Cause.FORCED)


def test_all_stays_where_it_is_but_for_the_layout() -> None:
    rewrite = rewritten(0.0)
    nodes = {node.name: node for node in rewrite.graph_def.node}
    assert {node.name for node in convolution().node} <= nodes.keys()
    assert {node.device for node in nodes.values()} == {GPU}
    assert nodes["y"].input == ["conv/tf_amp_cast_float32"]
    assert nodes["conv/tf_amp_cast_float32"].input == ["after"]
    assert nodes["conv"].attr["data_format"].s == b"NHWC"
    assert not any("tf_amp_layout" in name for name in nodes)


def test_what_is_transposed_and_back_is_read_as_it_was() -> None:
    graph_def = graph_from_text(
        """
        first = Const dtype=int32 value=[0,3,1,2]
        last = Const dtype=int32 value=[0,2,3,1]
        x = Placeholder
        a = Transpose(x, first)
        b = Transpose(a, last)
        c = Transpose(b, first)
        d = Relu(c)
        e = Transpose(a, first)
        f = Relu(e)
        """
    )
    assert text_from_graph(
        without_pairs(Graph(graph_def), ["x", "a", "d", "f"])
    ) == "\n".join(
        [
            "first = Const",
            "x = Placeholder dtype=float32",
            "a = Transpose(x, first) T=float32",
            "d = Relu(a) T=float32",
            "e = Transpose(a, first) T=float32",
            "f = Relu(e) T=float32",
        ]
    )


@pytest.mark.parametrize(
    ("op", "value", "mapped"),
    [
        ("DataFormatDimMap", [1, 2, -1, 0], [2, 3, 1, 0]),
        ("DataFormatDimMap", 3, 1),
        ("DataFormatVecPermute", [10, 11, 12, 13], [10, 13, 11, 12]),
        ("DataFormatVecPermute", [[0, 1], [2, 3], [4, 5], [6, 7]], None),
        ("DataFormatVecPermute", [1, 2], None),
    ],
)
def test_mapped_axes_are_what_tensorflow_makes_of_them(
    op: str, value: list[int], mapped: list[int] | None
) -> None:
    with tf.Graph().as_default() as graph:
        given = tf.constant(value, tf.int32, name="given")
        made = getattr(tf.raw_ops, op)(x=given, name="made")
    edited = Graph(graph.as_graph_def())
    fix_axes(edited, ())
    folded = edited.to_graph_def()
    with tf.compat.v1.Session(graph=graph) as session:
        wanted = session.run(made)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(folded, name="")
    with tf.compat.v1.Session(graph=graph) as session:
        found = session.run("made:0")
    np.testing.assert_array_equal(found, wanted)
    if mapped is not None:
        np.testing.assert_array_equal(found, mapped)
    is_constant = {node.name: node.op for node in folded.node}["made"] == "Const"
    assert is_constant == (np.shape(value) != (2,))


def test_axes_that_somebody_relies_on_stay_as_they_are() -> None:
    with tf.Graph().as_default() as graph:
        tf.raw_ops.DataFormatDimMap(x=tf.constant([1], name="given"), name="made")
    given = graph.as_graph_def()
    edited = Graph(given)
    fix_axes(edited, {"made"})
    assert edited.to_graph_def().node == given.node
