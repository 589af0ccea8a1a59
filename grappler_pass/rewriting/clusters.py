"""Keep out of XLA's clusters what would compute something else in them.

Compiled by XLA, an index out of range is clamped, an integer divided by zero is a
number, a maximum leaves NaN out, and random numbers are others. So each such node gets
a scope of its own: nodes of two scopes are never in one cluster, and one node alone is
no cluster. It runs as it did, between clusters of the others.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.op_table import COUNTING_OPS, DECOMPOSING_OPS, SIZING_OPS
from grappler_pass.graph.walks import function_attrs

# What TensorFlow separates clusters by where XLA compiles all that it can.
_SCOPE = "_XlaInternalScope"
_TOGETHER = b"tf_amp"
# Indices that are out of range raise an error, and are clamped or left out there.
_INDEXING = re.compile(
    "(Tensor|Resource)?(Gather|Scatter).*|(Unsorted)?Segment.*|(Parallel)?Dynamic.*"
    "|InTopK.*|InvertPermutation|ReverseSequence|Sparse.*|Stack.*|TensorArray.*"
    "|TensorList.*"
)
# Errors are left out.
_CHECKING = frozenset({"Assert", "CheckNumerics"})
# Numbers are drawn from other streams.
_DRAWING = re.compile(
    "(Stateless)?(Random|Truncated|Parameterized|Multinomial).*|Rng.*"
    "|Stateful(Random|Standard|Truncated|Uniform).*|StochasticCastToInt"
)
# NaN is left out, or in another order.
_OF_NAN = re.compile("(Arg)?(Max|Min)|MaxPool.*|(Approx)?TopK.*")
# Of integers that are divided by zero, and the like.
_OF_INTEGERS = frozenset(
    "Div FloorDiv FloorMod LeftShift Mod Pow RightShift TruncateDiv TruncateMod".split()
)
# They leave out NaN of their second operand.
_OF_TWO = frozenset({"Maximum", "Minimum"})
# Which of their operands say what is taken, or counted.
_SLICES = {
    "Slice": slice(1, 3),
    "StridedSlice": slice(1, 4),
    "StridedSliceGrad": slice(4),
    **dict.fromkeys(COUNTING_OPS, slice(3)),
}


def with_separate_nodes(graph_def: GraphDef) -> GraphDef:
    """Return a graph of whose nodes XLA clusters those that compute the same in it."""
    constants = {node.name for node in graph_def.node if node.op == "Const"}
    changed = GraphDef()
    changed.CopyFrom(graph_def)
    for number, node in enumerate(changed.node):
        is_apart = differs(node, constants) or any(function_attrs(node))
        scope = b"%s_%d" % (_TOGETHER, number) if is_apart else _TOGETHER
        node.attr[_SCOPE].s = scope
    return changed


def differs(node: NodeDef, constants: Collection[str]) -> bool:
    """Return whether a node may compute something else compiled by XLA.

    `constants`: names of nodes whose value is known.
    """
    if draws(node) or checks(node) or misses_errors(node, constants):
        return True
    if node.op == "Cast":
        return _is_integer(node, "DstT") and not _is_integer(node, "SrcT")
    if node.op in _OF_TWO:
        return not _is_known(node, constants)
    return _OF_NAN.fullmatch(node.op) is not None


def draws(node: NodeDef) -> bool:
    """Return whether a node draws random numbers, which are others by XLA."""
    return _DRAWING.fullmatch(node.op) is not None


def checks(node: NodeDef) -> bool:
    """Return whether a node does nothing but raise errors, which XLA leaves out."""
    return node.op in _CHECKING


def misses_errors(node: NodeDef, constants: Collection[str]) -> bool:
    """Return whether a node raises errors on a CPU where XLA computes something."""
    op = node.op
    if op in _OF_INTEGERS:
        # A divisor that is known is none that would always raise an error.
        return _is_integer(node, "T") and not _is_known(node, constants)
    if op in _SLICES:
        return not _is_known(node, constants, _SLICES[op])
    is_listed = op in DECOMPOSING_OPS or op in SIZING_OPS
    return is_listed or _INDEXING.fullmatch(op) is not None


def _is_integer(node: NodeDef, name: str) -> bool:
    return bool(tf.as_dtype(node.attr[name].type).is_integer)


def _is_known(
    node: NodeDef, constants: Collection[str], which: slice = slice(1, None)
) -> bool:
    """Return whether some operands, those from the second on, are constants."""
    others = (text for text in node.input[which] if text[0] != "^")
    return all(text.partition(":")[0] in constants for text in others)
