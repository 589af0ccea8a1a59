"""Shapes that TensorFlow's inference forgets, guessed for prices alone.

It forgets the elements of a tensor list that goes around a loop, and with them every
shape in the backward pass of a recurrent network. What was pushed shows what is popped;
a few rules carry the shape on. A wrong guess makes a price wrong. Where rounding does
harm depends on what is broadcast, too, so of that nothing is guessed.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from grappler_pass.costs.op_classes import ELEMENTWISE, MATMULS
from grappler_pass.graph import op_table as table
from grappler_pass.graph.shapes import Shape, Shapes, known_shape, variable_shape
from grappler_pass.graph.view import Graph, Node
from grappler_pass.graph.walks import reached

# Results have the shape of the first operand; of these, of any.
_ONE_OF_ALL = table.MERGE_OPS | {"AddN"}
_PASS = table.FORWARDING_OPS | _ONE_OF_ALL | {"Cast", "ZerosLike"}
# What has fewer dimensions is often broadcast.
_LEAST_RANK = 2


def fill_shapes(view: Graph, shapes: Shapes) -> Shapes:
    """Return a graph's shapes with what the rules can tell of unknown ones."""
    if not any(node.op in table.POPPED_OUTPUT for node in view.nodes):
        return shapes
    filled = dict(shapes)
    # The second sweep carries on what came around a loop.
    for i in (*view.order, *view.order):
        node = view.nodes[i]
        known = filled.get(node.name, ())
        if all(map(_is_known, known)) or not node.inputs:
            continue
        if (guess := _guess(view, filled, node)) is None:
            continue
        # A guess of another rank than TensorFlow's own inference is wrong.
        if any(shape and len(shape) != len(guess) for shape in known):
            continue
        # A popped list has but one tensor.
        only = table.POPPED_OUTPUT.get(node.op)
        count = max(len(known), 1 if only is None else only + 1)
        padded = (*known, *[None] * (count - len(known)))
        filled[node.name] = tuple(
            guess if not _is_known(shape) and only in (None, output) else shape
            for output, shape in enumerate(padded)
        )
    return filled


def _guess(view: Graph, shapes: Shapes, node: Node) -> Shape | None:
    """Return the shape of a node's results by those of its operands, if that tells."""
    inputs = [known_shape(shapes, view, port) for port in node.inputs]
    known = [shape for shape in inputs if shape is not None and _is_known(shape)]
    if node.op in table.POPPED_OUTPUT:
        return _pushed(view, shapes, node)
    if node.op in _PASS:
        # What a switch is turned by, and how large a frame is, are no data.
        count = len(inputs) if node.op in _ONE_OF_ALL else 1
        return next(filter(_is_known, inputs[:count]), None)
    if node.op in MATMULS:
        left, right = inputs[:2]
        if left is None or right is None or len(left) != 2 or len(right) != 2:
            return None
        attrs = node.proto.attr
        rows = left[1 if "transpose_a" in attrs and attrs["transpose_a"].b else 0]
        columns = right[0 if "transpose_b" in attrs and attrs["transpose_b"].b else 1]
        return (rows, columns)
    if node.op == "BiasAddGrad":
        return inputs[0][-1:] if _is_known(inputs[0]) and inputs[0] else None
    if node.op == "ConcatV2":
        parts = [shape for shape in inputs[:-1] if shape and _is_known(shape)]
        last = view.nodes[node.inputs[-1].node]
        if last.op != "Const" or len(parts) < len(inputs) - 1:
            return None
        value = tf.make_ndarray(last.proto.attr["value"].tensor)
        axis = int(value.item()) % len(parts[0])
        total = sum(shape[axis] or 0 for shape in parts)
        return (*parts[0][:axis], total, *parts[0][axis + 1 :])
    if node.op in ELEMENTWISE or node.op == "BiasAdd":
        # Beside an unknown shape a vector may be a bias.
        least = 0 if len(known) == len(inputs) else _LEAST_RANK
        if max(map(len, known), default=-1) < least:
            return None
        try:
            return np.broadcast_shapes(*known)  # type: ignore[arg-type]
        except ValueError:
            return None
    return None


def _pushed(view: Graph, shapes: Shapes, node: Node) -> Shape | None:
    """Return the shape of what was pushed on the list that `node` reads."""

    def before(i: int) -> list[int]:
        is_merge = view.nodes[i].op == "Merge"
        return [port.node for port in view.nodes[i].inputs[: None if is_merge else 1]]

    # The nodes that the list has come through, back through loops.
    for source in map(view.nodes.__getitem__, reached([node.inputs[0].node], before)):
        if source.op == "TensorListFromTensor":
            whole = known_shape(shapes, view, source.inputs[0])
            return whole[1:] if whole and _is_known(whole[1:]) else None
        if source.op in table.PUSHED_INPUT:
            pushed = source.inputs[table.PUSHED_INPUT[source.op]]
            shape = known_shape(shapes, view, pushed)
        else:
            shape = variable_shape(source.proto) if source.op == "_Arg" else None
        if _is_known(shape):
            return shape
    return None


def _is_known(shape: Shape | None) -> bool:
    return shape is not None and None not in shape
