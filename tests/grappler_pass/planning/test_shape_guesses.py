"""What is guessed of a shape is nothing that a broadcast operand has."""

from __future__ import annotations

import pytest

from grappler_pass.graph.view import Graph, Item
from grappler_pass.planning.guessed_shapes import fill_shapes
from tests.text_graph import graph_from_text

POPPED = """
list = Placeholder dtype=variant
axis = Const value=0 dtype=int32
popped = TensorListPopBack(list, axis) element_dtype=float
x = Placeholder
"""


@pytest.mark.parametrize(
    ("line", "known", "guess"),
    [
        ("y = Mul(popped, x)", (4, 8), (4, 8)),
        ("y = Mul(popped, x)", (), None),
        ("y = AddV2(popped, x)", (8,), None),
        ("y = AddN(popped, x)", (8,), (8,)),
        ("y = BiasAdd(popped, x)", (8,), None),
        ("y = Mul(x, x)", (8,), (8,)),
    ],
)
def test_beside_an_unknown_operand(line, known, guess) -> None:
    graph_def = graph_from_text(f"{POPPED}\n{line}\nfetch = Identity(y)")
    view = Graph(graph_def, Item(fetch=("fetch",)))
    unknown = {"list": (), "axis": ((),), "popped": (None, None), "y": (None,)}
    filled = fill_shapes(view, {**unknown, "x": (known,)})
    assert filled["y"] == (guess,)


@pytest.mark.parametrize(
    ("known", "guess"), [((8, 4), (8, 4)), ((None, 4), (None, 4)), (None, None)]
)
def test_a_switch_has_the_shape_of_its_data_and_not_of_what_turns_it(
    known, guess
) -> None:
    turned = """
    turn = Placeholder dtype=bool
    y = Switch(x, turn)
    fetch = Identity(y:1)
    """
    view = Graph(graph_from_text(POPPED + turned), Item(fetch=("fetch",)))
    open_sizes = None if known is None else (None, *known[1:])
    shapes = {"turn": ((),), "x": (known,), "y": (open_sizes,) * 2}
    unknown = {"list": (), "axis": ((),), "popped": (None, None)}
    filled = fill_shapes(view, {**unknown, **shapes})
    assert filled["y"] == (guess, guess)


def test_a_guess_of_another_rank_than_is_known_is_none() -> None:
    graph_def = graph_from_text(f"{POPPED}\ny = AddN(popped, x)\nfetch = Identity(y)")
    view = Graph(graph_def, Item(fetch=("fetch",)))
    unknown = {"list": (), "axis": ((),), "popped": (None, None)}
    filled = fill_shapes(view, {**unknown, "x": ((8,),), "y": ((None, 4),)})
    assert filled["y"] == ((None, 4),)
