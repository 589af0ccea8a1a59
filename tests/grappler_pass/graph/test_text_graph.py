"""Text graphs say what they look like, and print as they read."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.text_graph import graph_from_text, text_from_graph

TEXT = """
x = Placeholder
axis = Const dtype=int32 value=1
weight = Const value=2.0
product = MatMul(x, x, ^axis) transpose_b=true @/device:CPU:0
parts = Split(axis, product) num_split=2
both = AddN(parts, parts:1)
low = Cast(both) SrcT=float32 DstT=bfloat16
pair = IdentityN(low, x) T=[bfloat16,float32]
"""


def test_a_graph_prints_as_it_was_written() -> None:
    assert text_from_graph(graph_from_text(TEXT)) == "\n".join(
        [
            "x = Placeholder dtype=float32",
            "axis = Const",
            "weight = Const dtype=float32",
            "product = MatMul(x, x, ^axis) T=float32 @/device:CPU:0",
            "parts = Split(axis, product) T=float32",
            "both = AddN(parts, parts:1) T=float32",
            "low = Cast(both) DstT=bfloat16 SrcT=float32",
            "pair = IdentityN(low, x) T=[bfloat16,float32]",
        ]
    )


def test_a_graph_from_text_runs() -> None:
    graph_def = graph_from_text(TEXT)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            result = session.run("both:0", {"x:0": [[1.0, 2.0], [3.0, 4.0]]})
    assert result.tolist() == [[5 + 11], [11 + 25]]


def test_a_line_that_is_no_node_is_quoted() -> None:
    with pytest.raises(ValueError, match="no node: 'MatMul'"):
        graph_from_text("MatMul")


def test_an_attribute_that_nothing_implies_is_named() -> None:
    with pytest.raises(ValueError, match="'f' needs a value"):
        graph_from_text("call = PartitionedCall Tin=[] Tout=[]")
