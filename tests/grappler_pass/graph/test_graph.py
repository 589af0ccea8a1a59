"""The view of a graph: order, readers, loop frames, and what is no graph."""

from __future__ import annotations

import pytest
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.frames import TRIP_COUNT_GUESS
from grappler_pass.graph.view import Graph, GraphError, Item, Port
from tests.text_graph import graph_from_text

LOOP = """
    start = Const dtype=int32 value=0
    one = Const dtype=int32 value=1
    limit = Const dtype=int32 value=7
    x = Placeholder
    enter_i = Enter(start) frame_name=loop
    enter_x = Enter(x) frame_name=loop
    merge_i = Merge(enter_i, next_i)
    merge_x = Merge(enter_x, next_x)
    bound = Const(^merge_i) dtype=int32 value={limit}
    less = Less(merge_i, bound)
    cond = LoopCond(less)
    switch_i = Switch(merge_i, cond)
    switch_x = Switch(merge_x, cond)
    step = Const(^switch_i) dtype=int32 value=1
    add = AddV2(switch_i:1, step)
    body = Tanh(switch_x:1)
    next_i = NextIteration(add)
    next_x = NextIteration(body)
    exit_x = Exit(switch_x)
    after = Relu(exit_x)
"""


def view_of(text: str) -> Graph:
    return Graph(graph_from_text(text))


def test_inputs_come_before_their_readers_and_back_edges_count_for_nothing() -> None:
    view = view_of(LOOP.format(limit=7))
    place = {i: rank for rank, i in enumerate(view.order)}
    assert sorted(place) == list(range(len(view.nodes)))
    for node in view.nodes:
        for source in (*(p.node for p in node.inputs), *node.controls):
            if view.nodes[source].op != "NextIteration":
                assert place[source] < place[node.index], node.name


def test_a_loop_body_weighs_as_often_as_its_bound_says() -> None:
    view = view_of(LOOP.format(limit=7))
    weights = {n.name: view.weight(n.index) for n in view.nodes}
    assert weights["body"] == weights["bound"] == weights["enter_x"] == 7.0
    assert weights["x"] == weights["exit_x"] == weights["after"] == 1.0


def test_an_unreadable_bound_is_the_stated_guess() -> None:
    text = LOOP.format(limit=7).replace("Less(merge_i, bound)", "Less(bound, merge_i)")
    view = view_of(text)
    assert view.weight(view.index["body"]) == TRIP_COUNT_GUESS


@pytest.mark.parametrize("bound", ["7.0", "inf", "nan"])
def test_a_value_compared_to_a_float_is_no_counter(bound: str) -> None:
    text = LOOP.format(limit=bound).replace(
        "bound = Const(^merge_i) dtype=int32", "bound = Const(^merge_i) dtype=float"
    )
    view = view_of(text)
    assert view.weight(view.index["body"]) == TRIP_COUNT_GUESS


def test_readers_are_listed_by_port_and_control_readers_separately() -> None:
    view = view_of(
        """
        x = Placeholder
        axis = Const dtype=int32
        parts = Split(axis, x) num_split=2
        a = AddV2(parts:1, parts:1)
        b = Relu(parts:1, ^a)
        """
    )
    parts, a, b = (view.index[name] for name in ("parts", "a", "b"))
    assert view.readers(Port(parts, 1)) == ((a, 0), (a, 1), (b, 0))
    assert view.readers(Port(parts, 0)) == ()
    assert view.output_ports(parts) == (Port(parts, 1),)
    assert view.control_readers(a) == (b,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = Relu(missing)", "'missing' of node 'a' names no node"),
        ("a = NoOp(^missing)", "names no node"),
        ("a = NoOp\na = NoOp", "two nodes are called 'a'"),
        ("a = Relu(b)\nb = Relu(a)", "cycle, or after one, that has no NextIteration"),
    ],
)
def test_what_is_no_graph_is_named(text: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        view_of(text).order  # noqa: B018 (asking is what fails)


def test_the_proto_is_not_written() -> None:
    graph_def = graph_from_text(LOOP.format(limit=7))
    before = GraphDef.FromString(graph_def.SerializeToString())
    view = Graph(graph_def, Item(fetch=("after",)))
    view.weight(0)
    assert graph_def == before
    assert view.item.untouchable == {"after"}
