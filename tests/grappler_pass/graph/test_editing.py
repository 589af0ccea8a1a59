"""An edited graph knows who reads what, and leaves the given one as it was."""

from __future__ import annotations

import pytest
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.editing import name_in, new_constant, new_node, texts_of
from grappler_pass.graph.view import Graph
from tests.text_graph import graph_from_text, text_from_graph

TEXT = """
x = Placeholder
parts = Split(axis, x) num_split=2
axis = Const value=0 dtype=int32
sum = AddV2(parts, parts:1, ^x)
fetch = Identity(sum)
"""


def edit_nothing(graph: Graph) -> None:
    pass


def put_a_cast_behind(graph: Graph) -> None:
    readers = graph.readers(graph.port("parts"))
    name = graph.unused("sum")
    cast = new_node("Cast", name, ["parts"], SrcT=1, DstT=14, Truncate=False)
    graph.add(cast, behind="parts")
    for reader in readers:
        graph.read(reader, name)


def put_another_in_its_place(graph: Graph) -> None:
    graph.put(new_node("Mul", "sum", ["x", "x"], T=1), new_constant("two", 2.0))


def wait(graph: Graph) -> None:
    graph.wait("fetch", ["^x", "^x", "^axis"])


@pytest.mark.parametrize(
    ("edit", "changed"),
    [
        (edit_nothing, []),
        (
            put_a_cast_behind,
            [
                "sum_1 = Cast(parts) DstT=bfloat16 SrcT=float32",
                "sum = AddV2(sum_1, parts:1, ^x) T=float32",
            ],
        ),
        (
            put_another_in_its_place,
            ["two = Const dtype=float32", "sum = Mul(x, x) T=float32"],
        ),
        (wait, ["fetch = Identity(sum, ^x, ^axis) T=float32"]),
    ],
)
def test_edits_change_what_they_say_and_readers_follow(
    edit, changed: list[str]
) -> None:
    given = graph_from_text(TEXT)
    whole = Graph(given)
    graph = whole.copy()
    edit(graph)
    after = graph.to_graph_def()
    assert changed_lines(given, after) == changed
    assert whole.to_graph_def().node == given.node == graph_from_text(TEXT).node
    afresh = Graph(after)
    for text in {text for node in after.node for text in texts_of(node)} | {
        "sum",
        "^x",
    }:
        wanted = sorted(
            (afresh.nodes[each.node].name, each.input)
            for each in afresh.readers(afresh.port(text))
        )
        readers = graph.readers(graph.port(text))
        assert sorted((graph.nodes[i].name, n) for i, n in readers) == wanted
    place = {graph.nodes[i].name: rank for rank, i in enumerate(graph.order)}
    for node in graph.nodes:
        assert all(place[name_in(t)] < place[node.name] for t in node.proto.input)


def test_nodes_that_nothing_reads_any_more_can_be_taken_out() -> None:
    given = graph_from_text(TEXT)
    after = Graph(given).redirected(
        lambda node: ["x" if text == "sum" else text for text in texts_of(node)],
        {"sum"},
        new=[new_constant("two", 2.0)],
    )
    assert changed_lines(given, after) == [
        "fetch = Identity(x) T=float32",
        "two = Const dtype=float32",
    ]
    assert given == graph_from_text(TEXT)


def changed_lines(before: GraphDef, after: GraphDef) -> list[str]:
    lines = text_from_graph(before).splitlines()
    return [line for line in text_from_graph(after).splitlines() if line not in lines]
