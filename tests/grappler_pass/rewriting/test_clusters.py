"""XLA makes clusters of what computes the same in them, and of nothing else."""

from __future__ import annotations

import pytest
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.rewriting.clusters import with_separate_nodes

FLOAT, INT = types_pb2.DT_FLOAT, types_pb2.DT_INT32
TOGETHER = """Add MatMul Conv2D Softmax Relu Sum ReadVariableOp ResourceApplyAdam
    Reshape FusedBatchNormV3 StopGradient Snapshot Transpose Select"""
APART = """GatherV2 ResourceGather GatherNd TensorScatterAdd ResourceScatterNdUpdate
    ScatterNd UnsortedSegmentSum DynamicStitch TensorListGetItem TensorArrayReadV3
    SparseSoftmaxCrossEntropyWithLogits Assert CheckNumerics Max ArgMin MaxPoolGrad
    TopKV2 RandomUniform StatelessRandomUniformV2 StatelessTruncatedNormalV2
    StatefulStandardNormalV2 RngReadAndSkip Multinomial Cholesky MatrixInverse
    UniqueV2"""


def scopes_of(graph_def: GraphDef) -> list[bytes]:
    changed = with_separate_nodes(graph_def)
    assert [n.name for n in changed.node] == [n.name for n in graph_def.node]
    return [node.attr["_XlaInternalScope"].s for node in changed.node]


@pytest.mark.parametrize(("ops", "apart"), [(TOGETHER, False), (APART, True)])
def test_each_node_that_differs_has_a_scope_of_its_own(ops: str, apart: bool) -> None:
    graph_def = GraphDef()
    for op in ops.split():
        graph_def.node.add(name=op, op=op)
        graph_def.node.add(name=f"{op}_again", op=op)
    scopes = scopes_of(graph_def)
    assert len({*scopes}) == (len(scopes) if apart else 1)


@pytest.mark.parametrize(
    ("op", "types", "operand", "apart"),
    [
        ("FloorDiv", {"T": INT}, "other", True),
        ("FloorDiv", {"T": INT}, "known", False),
        ("FloorDiv", {"T": FLOAT}, "", False),
        ("Cast", {"SrcT": FLOAT, "DstT": INT}, "", True),
        ("Cast", {"SrcT": INT, "DstT": FLOAT}, "", False),
        ("Cast", {"SrcT": INT, "DstT": types_pb2.DT_INT64}, "", False),
        ("Maximum", {}, "known:0", False),
        ("Maximum", {}, "other", True),
        ("StridedSlice", {}, "other", True),
        ("StridedSlice", {}, "known", False),
        ("Range", {}, "known", True),
    ],
)
def test_types_and_known_operands_decide(
    op: str, types: dict[str, int], operand: str, apart: bool
) -> None:
    graph_def = GraphDef()
    graph_def.node.add(name="known", op="Const")
    graph_def.node.add(name="other", op="Identity")
    node = graph_def.node.add(name="node", op=op, input=["other", operand or "known"])
    for name, each in types.items():
        node.attr[name].type = each
    *others, scope = scopes_of(graph_def)
    assert (scope not in others) == apart


def test_what_a_gradient_of_a_slice_is_made_from_does_not_matter() -> None:
    graph_def = GraphDef()
    graph_def.node.add(name="known", op="Const")
    graph_def.node.add(name="gradient", op="Identity")
    operands = [*["known"] * 4, "gradient"]
    graph_def.node.add(name="node", op="StridedSliceGrad", input=operands)
    graph_def.node.add(name="others", op="StridedSliceGrad", input=operands[::-1])
    first, *_, node, others = scopes_of(graph_def)
    assert node == first != others


def test_a_node_that_calls_a_function_is_apart() -> None:
    graph_def = GraphDef()
    graph_def.node.add(name="one", op="Add")
    graph_def.node.add(name="call", op="While").attr["body"].func.name = "body"
    assert len({*scopes_of(graph_def)}) == 2
