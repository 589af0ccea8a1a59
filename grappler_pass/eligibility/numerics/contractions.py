"""Which products sum at all: a product of sizes 1 is arithmetic like any other.

einsum("i,j->ij")      no letter is summed over
[n, 1] @ [1, m]        one term per element
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.costs.work.op_classes import (
    BATCH_MATMULS,
    CONVOLUTIONS,
    DEPTHWISE,
    MATMULS,
)
from grappler_pass.graph.op_table import EINSUM_OPS
from grappler_pass.graph.shapes import Shape

_TRANSPOSES = ("transpose_a", "adj_x")


def has_sum(proto: NodeDef, operands: Sequence[Shape | None]) -> bool:
    """Return whether a product of operands of some shapes adds up terms.

    Where that is not known it does.
    """
    if proto.op in EINSUM_OPS:
        return _einsum_has_sum(proto.attr["equation"].s.decode(), operands)
    if proto.op in MATMULS or proto.op in BATCH_MATMULS:
        return _summed_size(proto, operands[0]) != 1
    if proto.op in CONVOLUTIONS or proto.op in DEPTHWISE:
        return _convolution_has_sum(proto.op, operands[1])
    return True


def _einsum_has_sum(equation: str, operands: Sequence[Shape | None]) -> bool:
    sources, arrow, target = equation.replace(" ", "").partition("->")
    if not arrow:
        return True
    for term, shape in zip(sources.split(","), operands, strict=False):
        for axis, letter in enumerate(term):
            if letter.isalpha() and letter not in target:
                # A guessed shape may have another rank.
                if shape is None or len(shape) != len(term) or shape[axis] != 1:
                    return True
    return False


def _summed_size(proto: NodeDef, left: Shape | None) -> int | None:
    if left is None or len(left) < 2:
        return None
    # `in` first: reading a missing key of a protobuf map creates it.
    flips = any(name in proto.attr and proto.attr[name].b for name in _TRANSPOSES)
    return left[-2 if flips else -1]


def _convolution_has_sum(op: str, kernel: Shape | None) -> bool:
    """Say whether an element of the result is a sum; a filter's gradient always is."""
    direction = CONVOLUTIONS.get(op) or DEPTHWISE[op]
    if kernel is None or len(kernel) < 3 or direction == "filter_gradient":
        return True
    if direction == "input_gradient":
        summed = (*kernel[:-2], kernel[-1])
    else:
        summed = kernel[:-2] if op in DEPTHWISE else kernel[:-1]
    return any(size != 1 for size in summed)
