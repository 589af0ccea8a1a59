"""An edited graph knows who reads what, and leaves the given one as it was."""

from __future__ import annotations

import pytest

from grappler_pass.graph.editing import Graph, new_constant, new_node, texts_of
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
    readers = graph.readers("parts")
    name = graph.unused("sum")
    cast = new_node("Cast", name, ["parts"], SrcT=1, DstT=14, Truncate=False)
    graph.replace(readers, graph.add(cast, behind="parts"))


def put_another_in_its_place(graph: Graph) -> None:
    graph.put(new_node("Mul", "sum", ["x", "x"], T=1), new_constant("two", 2.0))


def take_out(graph: Graph) -> None:
    graph.redirect(
        lambda node: ["x" if text == "sum" else text for text in texts_of(node)],
        {"sum"},
    )


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
        (take_out, ["fetch = Identity(x) T=float32"]),
        (wait, ["fetch = Identity(sum, ^x, ^axis) T=float32"]),
    ],
)
@pytest.mark.parametrize("is_asked_before", [True, False])
def test_edits_change_what_they_say_and_readers_follow(
    edit, changed: list[str], is_asked_before: bool
) -> None:
    given = graph_from_text(TEXT)
    before = given.SerializeToString(deterministic=True)
    graph = Graph(given)
    if is_asked_before:
        assert [r.node.name for r in graph.readers("x")] == ["parts"]
    edit(graph)
    after = graph.to_graph_def()
    assert given.SerializeToString(deterministic=True) == before
    lines = text_from_graph(given).splitlines()
    found = [line for line in text_from_graph(after).splitlines() if line not in lines]
    assert found == changed
    afresh = Graph(after)
    texts = {text for node in after.node for text in texts_of(node)}
    for text in texts | {"x", "parts", "sum", "^x"}:
        wanted = {(r.node.name, r.input) for r in afresh.readers(text)}
        assert {(r.node.name, r.input) for r in graph.readers(text)} == wanted
