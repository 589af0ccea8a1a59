"""The error that each tensor carries where products' operands are rounded by hand.

That program is the reference of what may be rounded (`sensitivity`). A product of
rounded operands is off by about the 16-bit epsilon of itself. What is made of it
inherits that error as `op_table.Errors` says of each op, and may be rounded again at no
greater loss; what is made of no product is exact to float32 and may not.

  MatMul --> BiasAdd --> Sigmoid --> Mul(MatMul) --> AddV2(x)
  PRODUCT    BIASED      ACTIVATED   PRODUCT         FLOAT32
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.annotations import OWN
from grappler_pass.costs.op_classes import (
    BATCH_MATMULS,
    CONVOLUTIONS,
    DEPTHWISE,
    MATMULS,
)
from grappler_pass.eligibility.reads import NUMPY_DTYPES
from grappler_pass.eligibility.regions import values_of
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, ERRORS, Errors, fused_parts
from grappler_pass.graph.op_traits import gradient_input
from grappler_pass.graph.shapes import Shape, Shapes, known_shape
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import Graph, Node, Port


class Error(enum.IntEnum):
    """The error that a tensor carries in the reference, the more exact the smaller."""

    # No product's error, or too little of it: exact to float32.
    FLOAT32 = 0
    # Bounded by the error of a product, of which the value may be free: sigmoid(20).
    ACTIVATED = 1
    # A product and something broadcast to it: a bias may be much larger.
    BIASED = 2
    # Off by the 16-bit epsilon of itself.
    PRODUCT = 3
    # Rounding changes nothing: 0, 0.5, a mask.
    EXACT = 4


# What may be rounded once more, and what of it is of a product's own size.
OF_PRODUCTS = (Error.ACTIVATED, Error.BIASED, Error.PRODUCT)
_OF_FULL_SIZE = (Error.BIASED, Error.PRODUCT)

# Sums in a row of products' results: each rounding adds to the last, and a small term
# vanishes beside a large sum. Four leave the error below twice that by hand.
LONGEST_CHAIN = 4
# Gradients of one value are much alike, and so are their roundings.
_LINKS_OF_ADD_N = 2
# Factors in a row that are rounded: 0.99 is off by as much each time, and the same way.
MOST_FACTORS = 2

# What a constant factor below that leaves of a small value, such as a gradient's mean,
# float16 holds in fewer bits or not at all; by head sizes attention divides by less.
_SMALL_FACTOR = 2.0**-4

# Ops with statistics in float32 beside their first result.
_WITH_STATISTICS = (Errors.NORMALIZES, Errors.GRADIENT)
# Position of what `_FusedBatchNormEx` adds to its result.
_SIDE_INPUT = 5
# So many values show of most constants that 16 bits do not hold them.
_FIRST_VALUES = 1000


class Carried(NamedTuple):
    """The error of a tensor, and its value's sums and factors since the last product.

    Attributes:
      error: in the reference.
      sums: of values of its size.
      factors: that are rounded in 16 bits.
    """

    error: Error = Error.FLOAT32
    sums: int = 0
    factors: int = 0

    @property
    def leaves_room(self) -> bool:
        """Whether rounding at each sum and factor stays near the reference."""
        return self.sums <= LONGEST_CHAIN and self.factors <= MOST_FACTORS


class CarriedErrors:
    """What each node makes of errors, and the error that its results carry.

    Attributes:
      members: number of a node that writes or reads a list of tensors to all nodes of
        that list.
      kinds: per node; None for an op that is not in the table.
      inputs: per node, the float32 tensors that it reads, with their positions.
      of_nodes: per node, of its first output.
    """

    def __init__(
        self,
        view: Graph,
        slots: SlotTable,
        shapes: Shapes,
        lists: OpLists,
        low_dtype: int,
        members: Mapping[int, Sequence[int]],
        stays: Callable[[NodeDef], str],
    ) -> None:
        """Follow errors, inputs first; what goes around a loop is FLOAT32.

        What is on the allow list is a product, unless it `stays` in float32 since the
        user says so. If tf-amp does, its operands may still be rounded. Unknown shapes
        count as of one size.
        """
        self.view, self.slots, self._shapes = view, slots, shapes
        self.low_dtype = low_dtype
        self.members = members
        self.kinds = [self._kind(node, lists, stays) for node in view.nodes]
        # The flow of a TensorArray is a float32 that has no value.
        self.inputs = [
            [
                (position, port)
                for position, port in enumerate(node.inputs)
                if slots.input_dtype(node.index, position) == FLOAT32
                and not (
                    kind is Errors.MOVES
                    and slots.input_slot(node.index, position) == NO_SLOT
                )
            ]
            for node, kind in zip(view.nodes, self.kinds, strict=True)
        ]
        self.of_nodes = [Carried()] * len(view.nodes)
        self._of_lists: dict[int, Carried] = {}
        # What is put on a list is known when all has been followed once.
        for _ in range(2 if members else 1):
            for i in view.order:
                self.of_nodes[i] = self._result(view.nodes[i])
            # Who reads a list may read the worst that is put on it.
            for group in dict.fromkeys(map(tuple, members.values())):
                put = [self.of(port) for i in group for _, port in self.inputs[i]]
                self._of_lists.update(dict.fromkeys(group, _worst(put)))

    def of(self, port: Port) -> Carried:
        """Return the error of a tensor; statistics beside a result are in float32."""
        node, carried = self.view.nodes[port.node], self.of_nodes[port.node]
        if node.op == "IdentityN":
            return carried._replace(error=self.of(node.inputs[port.output]).error)
        if port.output and self.kinds[port.node] in _WITH_STATISTICS:
            return carried._replace(error=Error.FLOAT32)
        return carried

    def is_one_number(self, port: Port) -> bool:
        """Return whether a tensor is known to have one element."""
        shape = known_shape(self._shapes, self.view, port)
        return shape is not None and all(size == 1 for size in shape)

    def is_broadcast(self, node: Node, position: int) -> bool:
        """Return whether an operand is smaller than the result that it is added to."""
        if node.op.startswith("BiasAdd"):
            return position == 1
        if any(
            position in own and name != "Add" for name, own in fused_parts(node.proto)
        ):
            return True
        own = known_shape(self._shapes, self.view, node.inputs[position])
        result = known_shape(self._shapes, self.view, Port(node.index, 0))
        if own is None or result is None:
            return own is not None and len(own) == 0
        if len(own) != len(result):
            return len(own) < len(result)
        return any(a == 1 and b != 1 for a, b in zip(own, result, strict=True))

    def _kind(
        self, node: Node, lists: OpLists, stays: Callable[[NodeDef], str]
    ) -> Errors | None:
        kind = ERRORS.get(node.op)
        # Whoever moves an op by hand has decided that it may be rounded.
        if lists.list_of(node.op) != ALLOW and node.op not in lists.freed:
            return Errors.REDUCES if kind is Errors.PRODUCT else kind
        if (why := stays(node.proto)) and not why.startswith(OWN):
            return Errors.REDUCES
        shapes = [known_shape(self._shapes, self.view, port) for port in node.inputs]
        if has_sum(node.proto, shapes):
            return Errors.PRODUCT
        return None if "fused_ops" in node.proto.attr else Errors.SCALES

    def _result(self, node: Node) -> Carried:
        """Return the error of a node's first output."""
        kind, item = self.kinds[node.index], self.view.item
        if node.index in self._of_lists:
            return self._of_lists[node.index]
        if node.name in item.feed:
            return Carried()
        if node.op == "Const":
            is_float32 = node.proto.attr["dtype"].type == FLOAT32
            if node.name in item.untouchable or not is_float32:
                return Carried()
            values = values_of(node.proto.attr["value"].tensor)
            is_exact = self._holds(values[:_FIRST_VALUES]) and self._holds(values)
            return Carried(Error.EXACT if is_exact else Error.FLOAT32)
        if node.op == "Cast":
            # Masks are exact, and what was in 16 bits is as inexact as a product.
            source = self.slots.input_dtype(node.index, 0)
            if source in (types_pb2.DT_BOOL, types_pb2.DT_UINT8):
                return Carried(Error.EXACT)
            return Carried(Error.PRODUCT if source == self.low_dtype else Error.FLOAT32)
        operands = [self.of(port) for _, port in self.inputs[node.index]]
        worst = _worst(operands)
        is_full_size = worst.error in _OF_FULL_SIZE
        match kind:
            case Errors.IGNORES:
                return Carried(Error.EXACT)
            case Errors.PRODUCT:
                return self._product(node)
            case Errors.MOVES:
                # What goes around a loop is not known where its iterations begin.
                sources = (self.view.nodes[port.node].op for port in node.inputs)
                around = node.op in table.MERGE_OPS and not (
                    table.NEXT_ITERATION_OPS.isdisjoint(sources)
                )
                return Carried() if around else worst
            case Errors.SCALES:
                return self._scaled(node, worst)
            case Errors.SUMS:
                return self._summed(node, worst)
            case Errors.GRADIENT:
                return self.of(node.inputs[gradient_input(node.op)])
            case Errors.ACTIVATES if is_full_size:
                return worst._replace(error=Error.ACTIVATED)
            case Errors.AVERAGES if worst.error in OF_PRODUCTS:
                return worst._replace(error=Error.ACTIVATED)
            case Errors.NORMALIZES if operands and operands[0].error in _OF_FULL_SIZE:
                carried = worst._replace(error=Error.BIASED)
                if node.op == "_FusedBatchNormEx" and len(node.inputs) > _SIDE_INPUT:
                    return self._plus(carried, node.inputs[_SIDE_INPUT])
                return carried
        return Carried()

    def _holds(self, values: np.ndarray) -> bool:
        """Return whether the low dtype holds numbers as they are."""
        with np.errstate(over="ignore"):
            rounded = values.astype(NUMPY_DTYPES[self.low_dtype]).astype(np.float32)
        return bool(np.array_equal(values, rounded, equal_nan=True))

    def _product(self, node: Node) -> Carried:
        """Return the error of a product with what is fused behind it."""
        carried = Carried(Error.PRODUCT)
        for name, own in fused_parts(node.proto):
            is_full_size = carried.error in _OF_FULL_SIZE
            if name == "Add" and not self.is_broadcast(node, own[0]):
                carried = self._plus(carried, node.inputs[own[0]])
            elif name in ("Add", "BiasAdd", "FusedBatchNorm"):
                carried = carried._replace(error=min(carried.error, Error.BIASED))
            elif ERRORS.get(name) not in (Errors.MOVES, Errors.SCALES):
                error = Error.ACTIVATED if is_full_size else Error.FLOAT32
                carried = carried._replace(error=error)
        return carried

    def _plus(self, carried: Carried, port: Port) -> Carried:
        """Return the error of a sum of two values of one size."""
        other = self.of(port)
        total = Carried(
            min(carried.error, other.error),
            max(carried.sums, other.sums) + 1,
            max(carried.factors, other.factors),
        )
        is_kept = other.error in _OF_FULL_SIZE and total.leaves_room
        return total if is_kept else Carried()

    def _scaled(self, node: Node, carried: Carried) -> Carried:
        errors = [self.of(port).error for _, port in self.inputs[node.index]]
        # A gate of float32 values: as exact as they are wanted to be.
        is_gate = Error.FLOAT32 in self._full_size(node)
        if any(
            self.of(port).error is Error.FLOAT32 and not self.is_one_number(port)
            for _, port in self.inputs[node.index]
        ):
            # With a gate, what it lets through is rounded beside it.
            rounded = 2 if is_gate and Error.PRODUCT not in errors else 1
            carried = carried._replace(factors=carried.factors + rounded)
        of_products = [error for error in errors if error in OF_PRODUCTS]
        if not carried.leaves_room or not of_products:
            return Carried()
        if Error.PRODUCT in errors:
            is_half = self.low_dtype == types_pb2.DT_HALF
            shrinks = is_half and _small_factor(self.view, node)
            error = Error.BIASED if shrinks else Error.PRODUCT
        else:
            error = Error.ACTIVATED if is_gate else min(of_products)
        return carried._replace(error=error)

    def _full_size(self, node: Node) -> list[Error]:
        """Return the errors of the operands that are not broadcast."""
        return [
            self.of(port).error
            for position, port in self.inputs[node.index]
            if not self.is_broadcast(node, position)
        ]

    def _summed(self, node: Node, carried: Carried) -> Carried:
        summands = self._full_size(node)
        if not summands or min(summands) not in _OF_FULL_SIZE:
            return Carried()
        links = _LINKS_OF_ADD_N if node.op == "AddN" else 1
        carried = carried._replace(sums=carried.sums + links * (len(summands) - 1))
        if not carried.leaves_room:
            return Carried()
        has_bias = len(summands) < len(self.inputs[node.index])
        is_biased = has_bias or Error.EXACT in summands
        return carried._replace(error=Error.BIASED if is_biased else min(summands))


def _small_factor(view: Graph, node: Node) -> bool:
    """Return whether a constant takes values to where float16 holds fewer bits."""
    for position, port in enumerate(node.inputs):
        source = view.nodes[port.node]
        if source.op == "Const":
            values = values_of(source.proto.attr["value"].tensor)
            most = np.abs(values).max(initial=0.0)
            divides = position == 1 and "Div" in node.op
            if most > 1 / _SMALL_FACTOR if divides else 0 < most < _SMALL_FACTOR:
                return True
    return False


def _worst(operands: Sequence[Carried]) -> Carried:
    """Return the least exact error, with the most sums and factors of any product."""
    products = [operand for operand in operands if operand.error in OF_PRODUCTS]
    return Carried(
        min((operand.error for operand in operands), default=Error.FLOAT32),
        max((operand.sums for operand in products), default=0),
        max((operand.factors for operand in products), default=0),
    )


def has_sum(proto: NodeDef, operands: Sequence[Shape | None]) -> bool:
    """Return whether a product of operands of some shapes adds up terms.

    Where that is not known it does. One that does not is arithmetic like any other:

      einsum("i,j->ij")      no letter is summed over
      [n, 1] @ [1, m]        one term per element
    """
    op, attrs = proto.op, proto.attr
    if op in table.EINSUM_OPS:
        equation = attrs["equation"].s.decode().replace(" ", "")
        sources, arrow, target = equation.partition("->")
        terms = zip(sources.split(","), operands, strict=False)
        # A guessed shape may have another rank.
        return not arrow or any(
            shape is None or len(shape) != len(term) or shape[axis] != 1
            for term, shape in terms
            for axis, letter in enumerate(term)
            if letter.isalpha() and letter not in target
        )
    if op in MATMULS or op in BATCH_MATMULS:
        left = operands[0]
        # `in` first: reading a missing key of a protobuf map creates it.
        flips = any(n in attrs and attrs[n].b for n in ("transpose_a", "adj_x"))
        return left is None or len(left) < 2 or left[-2 if flips else -1] != 1
    direction = CONVOLUTIONS.get(op) or DEPTHWISE.get(op)
    if direction is None or direction == "filter_gradient":
        return True
    kernel = operands[1]
    if kernel is None or len(kernel) < 3:
        return True
    if direction == "input_gradient":
        summed = (*kernel[:-2], kernel[-1])
    else:
        summed = kernel[:-2] if op in DEPTHWISE else kernel[:-1]
    return any(size != 1 for size in summed)
