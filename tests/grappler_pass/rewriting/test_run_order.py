"""What frees memory runs before a step goes on."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.device_types import Home
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Graph, Item
from grappler_pass.planning.live_set import largest_live_set, peak_of
from grappler_pass.rewriting.run_order import with_early_readers
from tests.programs import plain_session_config
from tests.text_graph import graph_from_text

# `a` to `d` go on; `s` and `t` read what they read, and are small.
TEXT = """
x = Placeholder shape=[64,64]
r = Const value=0 dtype=int32
p = Placeholder shape=[] dtype=bool
v = VarHandleOp shape=[64]
a = MatMul(x, x)
b = MatMul(a, x)
c = MatMul(b, x)
d = MatMul(c, x)
{beside}
"""


def view_of(graph: GraphDef, fetch: str) -> Graph:
    return Graph(graph, Item(fetch=tuple(fetch.split())), Home("CPU"))


def ordered(graph: GraphDef, fetch: str) -> Graph:
    view = view_of(graph, fetch)
    peak = peak_of(view, shapes_from_graph_def(graph))
    return view_of(with_early_readers(view, peak, view.index).to_graph_def(), fetch)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        # `a` is freed before `c` is computed.
        ("s = Sum(a, r); y = Mul(d, s)", {"c": ["s"]}),
        # All that reads what is read, to the last that does not wait for the chain.
        ("s = Exp(a); t = Sum(s, r); y = Mul(d, t)", {"b": ["t"], "c": ["t"]}),
        # What is read late is not freed early.
        ("s = MatMul(d, a); t = Sum(a, r); u = Mul(s, t); y = MatMul(u, x)", {}),
        # What is left is as large.
        ("s = Exp(a); y = MatMul(d, s)", {}),
        # What is fetched is left for the end.
        ("z = Sum(a, r); y = Mul(d, d)", {}),
        # Casts are not waited for: what reads them may be.
        ("s = Cast(a) SrcT=float32 DstT=float64; t = Sum(s, r) T=float64; "
         "u = Cast(t) SrcT=float64 DstT=float32; y = Mul(d, u)", {"b": ["t"]}),
        # Updates stay where they are: a variable may be read before that.
        ("s = Sum(a, r); u = AssignSubVariableOp(v, s); y = Mul(d, d, ^u)",
         {"c": ["s"], "y": ["u"]}),
        # Behind a branch a node may not run.
        ("w = Switch(a, p); s = Sum(w, r); y = Merge(d, s)", {}),
        ("l = Enter(a) frame_name=loop; e = Exit(l); s = Sum(e, r); y = Mul(d, s)", {}),
    ],
)  # fmt: skip
def test_the_chain_waits_for_what_frees_a_tensor(
    beside: str, expected: dict[str, list[str]]
) -> None:
    graph = graph_from_text(TEXT.format(beside=beside.replace("; ", "\n")))
    found = ordered(graph, "y z" if "z =" in beside else "y")
    waiting = {
        node.name: [found.nodes[i].name for i in node.controls]
        for node in found.nodes
        if node.controls
    }
    assert waiting == expected


# What is entered late reaches the Exit around the loop alone, and `s` waits for that.
LOOP = """
x = Placeholder shape=[64,64]
r = Const value=[0,1] dtype=int32
zero = Const value=0.0
a = MatMul(x, x)
b = MatMul(a, x)
c = MatMul(b, x)
d = MatMul(c, x)
e = MatMul(d, x)
f = MatMul(e, x)
g = MatMul(f, x)
h = MatMul(g, x)
total = Sum(d, r)
begin = Enter(zero) frame_name=loop
late = Enter(total) frame_name=loop is_constant=true
merge = Merge(begin, next)
limit = Const(^merge) value=1.0
less = Less(merge, limit)
cond = LoopCond(less)
switch = Switch(merge, cond)
sum = AddV2(switch:1, late)
next = NextIteration(sum)
exit = Exit(switch)
s = Sum(a, r, ^exit)
y = Mul(h, s)
"""


def test_nothing_that_enters_a_loop_waits_for_what_leaves_it() -> None:
    graph = graph_from_text(LOOP)
    found = ordered(graph, "y").to_graph_def()
    # The first node of the chain that the loop does not wait for.
    assert [node.name for node in found.node if "^s" in node.input] == ["e"]
    with tf.Graph().as_default():
        (y,) = tf.import_graph_def(found, return_elements=["y:0"], name="")
        with tf.compat.v1.Session(config=plain_session_config()) as session:
            result = session.run(y, {"x:0": np.eye(64)})
    np.testing.assert_array_equal(result, 64.0 * np.eye(64))


def test_gradients_of_weights_are_not_left_for_the_end() -> None:
    layers = range(1, 9)
    lines = ["x = Placeholder shape=[64,256]", "r = Const value=[0,1] dtype=int32"]
    lines += ["w = Placeholder shape=[256,256]", "h0 = MatMul(x, w)"]
    lines += [f"h{i} = MatMul(h{i - 1}, w)" for i in layers]
    lines += ["g9 = MatMul(h8, w)"]
    for i in reversed(layers):
        lines.append(f"s{i} = Mul(g{i + 1}, h{i - 1})")
        lines.append(f"v{i} = Sum(s{i}, r)")
        lines.append(f"g{i} = MatMul(g{i + 1}, w)")
    lines.append(f"y = AddN(g1sum, {', '.join(f'v{i}' for i in layers)}) N=9")
    lines.insert(-1, "g1sum = Sum(g1, r)")
    graph = graph_from_text("\n".join(lines))
    shapes = shapes_from_graph_def(graph)
    sizes = [
        largest_live_set(view, shapes).size
        for view in (view_of(graph, "y"), ordered(graph, "y"))
    ]
    assert sizes[1] < 0.8 * sizes[0]


@pytest.mark.parametrize("seed", range(30))
def test_no_cycle_comes_about(seed: int) -> None:
    draw = random.Random(seed)
    lines = ["n0 = Placeholder shape=[8,8]", "r = Const value=[0,1] dtype=int32"]
    for number in range(1, 40):
        one, other = (draw.randrange(max(0, number - 6), number) for _ in range(2))
        lines.append(f"n{number} = Mul(n{one}, n{other})")
        if draw.random() < 0.5:
            lines.append(f"m{number} = Sum(n{other}, r)")
            lines.append(f"l{number} = Add(m{number}, n{number})")
    graph = graph_from_text("\n".join(lines))
    fetch = " ".join(n.name for n in graph.node if n.name[0] == "l") + " n39"
    found = ordered(graph, fetch)
    # An order exists only without cycles.
    assert len(found.order) == len(graph.node)


def test_what_the_pass_has_added_is_not_waited_for() -> None:
    graph = graph_from_text(TEXT.format(beside="s = Sum(a, r)\ny = Mul(d, s)"))
    view = view_of(graph, "y")
    peak = peak_of(view, shapes_from_graph_def(graph))
    made = with_early_readers(view, peak, view.index.keys() - {"s"})
    assert not any(node.controls for node in made.nodes)
