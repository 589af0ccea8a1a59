"""Fill in shapes that TensorFlow's inference loses.

Inference forgets the elements of a tensor list that goes around a loop, and with them
every shape in the backward pass of a recurrent network. What was pushed shows what is
popped; a few rules carry the shape on. A wrong guess makes a price wrong. Where
rounding does harm depends on what is broadcast, too, so of that nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from grappler_pass.costs.op_classes import ELEMENTWISE, MATMULS
from grappler_pass.graph import op_table as table
from grappler_pass.graph.shapes import Shape, Shapes, known_shape, variable_shape
from grappler_pass.graph.view import GraphView, Node, Port

_PASS = table.FORWARDING_OPS | table.MERGE_OPS | {"AddN", "Cast", "ZerosLike"}
# What has fewer dimensions is often broadcast.
_LEAST_RANK = 2


def fill_shapes(view: GraphView, shapes: Shapes) -> Shapes:
    """Return a graph's shapes with what the rules can tell of unknown ones."""
    if not any(node.op in table.POPPED_OUTPUT for node in view.nodes):
        return shapes
    filling = _Filling(view, shapes)
    # The second sweep carries on what came around a loop.
    filling.sweep()
    filling.sweep()
    return filling.shapes


class _Filling:
    def __init__(self, view: GraphView, shapes: Shapes) -> None:
        self._view = view
        self.shapes = dict(shapes)

    def sweep(self) -> None:
        for i in self._view.order:
            node = self._view.nodes[i]
            known = self.shapes.get(node.name, ())
            if all(_is_known(shape) for shape in known) or not node.inputs:
                continue
            guess = self._guess(node)
            if guess is not None:
                self.shapes[node.name] = _merged(node, known, guess)

    def _guess(self, node: Node) -> Shape | None:
        inputs = [self._shape(port) for port in node.inputs]
        if node.op in table.POPPED_OUTPUT:
            return self._pushed(node)
        if node.op in _PASS:
            return next(filter(_is_known, inputs), None)
        if node.op in MATMULS:
            return _product(node, inputs)
        if node.op == "BiasAddGrad":
            return inputs[0][-1:] if _is_known(inputs[0]) and inputs[0] else None
        if node.op == "ConcatV2":
            return self._concatenated(node, inputs)
        if node.op in ELEMENTWISE or node.op == "BiasAdd":
            return _broadcast(inputs)
        return None

    def _shape(self, port: Port) -> Shape | None:
        return known_shape(self.shapes, self._view, port)

    def _pushed(self, node: Node) -> Shape | None:
        """Return the shape of what was pushed on the list that `node` reads."""
        for source in self._behind_handle(node.inputs[0].node):
            if source.op == "TensorListFromTensor":
                whole = self._shape(source.inputs[0])
                return whole[1:] if whole and _is_known(whole[1:]) else None
            if source.op in table.PUSHED_INPUT:
                shape = self._shape(source.inputs[table.PUSHED_INPUT[source.op]])
            else:
                shape = variable_shape(source.proto) if source.op == "_Arg" else None
            if _is_known(shape):
                return shape
        return None

    def _behind_handle(self, handle: int) -> Iterator[Node]:
        """Yield the nodes that a list has come through, back through loops."""
        seen = {handle}
        waiting = [handle]
        while waiting:
            node = self._view.nodes[waiting.pop()]
            yield node
            ports = node.inputs if node.op == "Merge" else node.inputs[:1]
            found = [port.node for port in ports if port.node not in seen]
            seen.update(found)
            waiting.extend(found)

    def _concatenated(self, node: Node, inputs: Sequence[Shape | None]) -> Shape | None:
        axis_node = self._view.nodes[node.inputs[-1].node]
        known = [shape for shape in inputs[:-1] if shape and _is_known(shape)]
        if axis_node.op != "Const" or len(known) < len(inputs) - 1:
            return None
        value = tf.make_ndarray(axis_node.proto.attr["value"].tensor)
        axis = int(value.item()) % len(known[0])
        total = sum(shape[axis] or 0 for shape in known)
        return (*known[0][:axis], total, *known[0][axis + 1 :])


def _is_known(shape: Shape | None) -> bool:
    return shape is not None and None not in shape


def _merged(
    node: Node, known: Sequence[Shape | None], guess: Shape
) -> tuple[Shape | None, ...]:
    """Put the guess where a shape is missing; a popped list has but one tensor."""
    only = table.POPPED_OUTPUT.get(node.op)
    count = max(len(known), 1 if only is None else only + 1)
    padded = (*known, *[None] * (count - len(known)))
    return tuple(
        guess if not _is_known(shape) and only in (None, output) else shape
        for output, shape in enumerate(padded)
    )


def _product(node: Node, inputs: Sequence[Shape | None]) -> Shape | None:
    left, right = inputs[:2]
    if left is None or right is None or len(left) != 2 or len(right) != 2:
        return None
    attrs = node.proto.attr
    rows = left[1 if "transpose_a" in attrs and attrs["transpose_a"].b else 0]
    columns = right[0 if "transpose_b" in attrs and attrs["transpose_b"].b else 1]
    return (rows, columns)


def _broadcast(inputs: Sequence[Shape | None]) -> Shape | None:
    """Return the shape of a result; beside an unknown one a vector may be a bias."""
    known = [shape for shape in inputs if shape is not None and _is_known(shape)]
    least = 0 if len(known) == len(inputs) else _LEAST_RANK
    if max(map(len, known), default=-1) < least:
        return None
    try:
        return np.broadcast_shapes(*known)  # type: ignore[arg-type]
    except ValueError:
        return None
