"""How exact each tensor is, and what rounding it to 16 bits would harm.

The reference is the program whose products' operands are rounded by hand. A product of
rounded operands is off by about the 16-bit epsilon of itself. One walk forward finds
the error that each tensor carries there, as `op_table.Errors` says of each op:

  MatMul --> BiasAdd --> Sigmoid --> Mul(MatMul) --> AddV2(x)
  PRODUCT    BIASED      ACTIVATED   PRODUCT         FLOAT32

One walk back finds where another rounding would be exposed. A value that carries a
product's error (`Error.PRODUCT`) may be rounded wherever it goes. Any other may where
every way on leads into a product, which would round it anyway, and nothing on the way
makes more of the error than the product does:

  MatMul --> BiasAdd --> Tanh --> MatMul       all of it in 16 bits
  MatMul --> BiasAdd --> Sub(target)           the last product alone
  MatMul --> Sigmoid --> Log                   likewise: sigmoid may be near 1
  x --> Mul(1/255) --> MatMul                  the product alone; x is cast after Mul
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.costs.op_classes import (
    BATCH_MATMULS,
    CONVOLUTIONS,
    DEPTHWISE,
    MATMULS,
)
from grappler_pass.eligibility.exactness import values_of
from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.eligibility.reads import NUMPY_DTYPES
from grappler_pass.eligibility.reasons import Cause, Reason
from grappler_pass.graph import op_table as table
from grappler_pass.graph.fusions import fused_parts
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, ERRORS, Errors, Others
from grappler_pass.graph.op_traits import gradient_input
from grappler_pass.graph.shapes import Shape, Shapes, known_shape
from grappler_pass.graph.type_slots import (
    FLOAT32,
    FLOATING,
    NO_SLOT,
    SlotTable,
    attr_of,
)
from grappler_pass.graph.view import GraphView, Node, Port
from grappler_pass.graph.walks import reached


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


# What rounding may happen to once more, and what is left of a product's own size.
_OF_PRODUCTS = (Error.ACTIVATED, Error.BIASED, Error.PRODUCT)
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
        view: GraphView,
        slots: SlotTable,
        shapes: Shapes,
        lists: OpLists,
        low_dtype: int,
        members: Mapping[int, Sequence[int]],
        stays: Callable[[NodeDef], object],
    ) -> None:
        """Follow errors, inputs first; what goes around a loop is FLOAT32.

        What is on the allow list is a product, unless it `stays` in float32 since the
        user says so. Unknown shapes count as of one size.
        """
        self.view, self.slots, self._shapes = view, slots, shapes
        self.low_dtype = low_dtype
        self.members = members
        self.kinds = [self._kind(node, lists, stays) for node in view.nodes]
        self.inputs = [self._floats(node) for node in view.nodes]
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

    def _floats(self, node: Node) -> list[tuple[int, Port]]:
        """Return the float32 inputs of a node with their positions.

        The flow of a TensorArray is a float32 that has no value.
        """
        slots, i = self.slots, node.index
        moves = self.kinds[i] is Errors.MOVES
        return [
            (position, port)
            for position, port in enumerate(node.inputs)
            if slots.input_dtype(i, position) == FLOAT32
            and not (moves and slots.input_slot(i, position) == NO_SLOT)
        ]

    def _kind(
        self, node: Node, lists: OpLists, stays: Callable[[NodeDef], object]
    ) -> Errors | None:
        kind = ERRORS.get(node.op)
        # Whoever moves an op by hand has decided that it may be rounded.
        if lists.list_of(node.op) != ALLOW and node.op not in lists.freed:
            return Errors.REDUCES if kind is Errors.PRODUCT else kind
        if stays(node.proto):
            return Errors.REDUCES
        shapes = [known_shape(self._shapes, self.view, port) for port in node.inputs]
        if has_sum(node.proto, shapes):
            return Errors.PRODUCT
        return None if "fused_ops" in node.proto.attr else Errors.SCALES

    def _result(self, node: Node) -> Carried:
        kind = self.kinds[node.index]
        if node.index in self._of_lists:
            return self._of_lists[node.index]
        if node.name in self.view.item.feed:
            return Carried()
        if node.op == "Const":
            return Carried(self._constant(node))
        if node.op == "Cast":
            return Carried(self._cast(node))
        if kind is None:
            return Carried()
        if kind is Errors.IGNORES:
            return Carried(Error.EXACT)
        operands = [self.of(port) for _, port in self.inputs[node.index]]
        worst = _worst(operands)
        is_full_size = worst.error in _OF_FULL_SIZE
        match kind:
            case Errors.PRODUCT:
                return self._product(node)
            case Errors.MOVES:
                return Carried() if self._comes_around(node) else worst
            case Errors.SCALES:
                return self._scaled(node, operands)
            case Errors.SUMS:
                return self._summed(node, operands)
            case Errors.GRADIENT:
                return self.of(node.inputs[gradient_input(node.op)])
            case Errors.ACTIVATES if is_full_size:
                return worst._replace(error=Error.ACTIVATED)
            case Errors.AVERAGES if worst.error in _OF_PRODUCTS:
                return worst._replace(error=Error.ACTIVATED)
            case Errors.NORMALIZES:
                return self._normalized(node, operands)
        return Carried()

    def _comes_around(self, node: Node) -> bool:
        """Return whether a node begins the iterations of a loop."""
        sources = (self.view.nodes[port.node].op for port in node.inputs)
        return node.op in table.MERGE_OPS and not (
            table.NEXT_ITERATION_OPS.isdisjoint(sources)
        )

    def _constant(self, node: Node) -> Error:
        is_open = node.name in self.view.item.untouchable
        if is_open or node.proto.attr["dtype"].type != FLOAT32:
            return Error.FLOAT32
        values = values_of(node.proto.attr["value"].tensor)
        is_exact = self._holds(values[:_FIRST_VALUES]) and self._holds(values)
        return Error.EXACT if is_exact else Error.FLOAT32

    def _holds(self, values: np.ndarray) -> bool:
        with np.errstate(over="ignore"):
            rounded = values.astype(NUMPY_DTYPES[self.low_dtype]).astype(np.float32)
        return bool(np.array_equal(values, rounded, equal_nan=True))

    def _cast(self, node: Node) -> Error:
        """Masks are exact, and what was in 16 bits is as inexact as a product."""
        source = self.slots.input_dtype(node.index, 0)
        if source in (types_pb2.DT_BOOL, types_pb2.DT_UINT8):
            return Error.EXACT
        return Error.PRODUCT if source == self.low_dtype else Error.FLOAT32

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

    def _normalized(self, node: Node, operands: Sequence[Carried]) -> Carried:
        if not operands or operands[0].error not in _OF_FULL_SIZE:
            return Carried()
        carried = _worst(operands)._replace(error=Error.BIASED)
        if node.op == "_FusedBatchNormEx" and len(node.inputs) > _SIDE_INPUT:
            return self._plus(carried, node.inputs[_SIDE_INPUT])
        return carried

    def _scaled(self, node: Node, operands: Sequence[Carried]) -> Carried:
        errors = [operand.error for operand in operands]
        # A gate of float32 values: as exact as they are wanted to be.
        is_gate = Error.FLOAT32 in self._full_size(node, errors)
        carried = _worst(operands)
        if any(
            error is Error.FLOAT32 and not self.is_one_number(port)
            for (_, port), error in zip(self.inputs[node.index], errors, strict=True)
        ):
            # With a gate, what it lets through is rounded beside it.
            rounded = 2 if is_gate and Error.PRODUCT not in errors else 1
            carried = carried._replace(factors=carried.factors + rounded)
        of_products = [error for error in errors if error in _OF_PRODUCTS]
        if not carried.leaves_room or not of_products:
            return Carried()
        if Error.PRODUCT in errors:
            error = Error.BIASED if self._shrinks(node) else Error.PRODUCT
        else:
            error = Error.ACTIVATED if is_gate else min(of_products)
        return carried._replace(error=error)

    def _shrinks(self, node: Node) -> bool:
        """Return whether a constant takes values to where float16 holds fewer bits."""
        if self.low_dtype != types_pb2.DT_HALF:
            return False
        for position, port in enumerate(node.inputs):
            source = self.view.nodes[port.node]
            if source.op == "Const":
                values = values_of(source.proto.attr["value"].tensor)
                most = np.abs(values).max(initial=0.0)
                divides = position == 1 and "Div" in node.op
                if most > 1 / _SMALL_FACTOR if divides else 0 < most < _SMALL_FACTOR:
                    return True
        return False

    def _full_size(self, node: Node, errors: Sequence[Error]) -> list[Error]:
        """Return the errors of the operands that are not broadcast."""
        return [
            error
            for (position, _), error in zip(
                self.inputs[node.index], errors, strict=True
            )
            if not self.is_broadcast(node, position)
        ]

    def _summed(self, node: Node, operands: Sequence[Carried]) -> Carried:
        summands = self._full_size(node, [operand.error for operand in operands])
        if not summands or min(summands) not in _OF_FULL_SIZE:
            return Carried()
        links = _LINKS_OF_ADD_N if node.op == "AddN" else 1
        carried = _worst(operands)
        carried = carried._replace(sums=carried.sums + links * (len(summands) - 1))
        if not carried.leaves_room:
            return Carried()
        is_biased = len(summands) < len(operands) or Error.EXACT in summands
        return carried._replace(error=Error.BIASED if is_biased else min(summands))


def _worst(operands: Sequence[Carried]) -> Carried:
    """Return the least exact error, with the most sums and factors of any product."""
    products = [operand for operand in operands if operand.error in _OF_PRODUCTS]
    return Carried(
        min((operand.error for operand in operands), default=Error.FLOAT32),
        max((operand.sums for operand in products), default=0),
        max((operand.factors for operand in products), default=0),
    )


_TRANSPOSES = ("transpose_a", "adj_x")


def has_sum(proto: NodeDef, operands: Sequence[Shape | None]) -> bool:
    """Return whether a product of operands of some shapes adds up terms.

    Where that is not known it does. One that does not is arithmetic like any other:

      einsum("i,j->ij")      no letter is summed over
      [n, 1] @ [1, m]        one term per element
    """
    if proto.op in table.EINSUM_OPS:
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


# Their results are as exact as what they read.
_FREE = (Errors.MOVES, Errors.IGNORES)
_ORDERS = table.COMPARISON_OPS - {"Equal", "NotEqual"}
_STATES = table.MERGE_OPS | table.READ_OPS | table.REF_VARIABLE_OPS
# What reads all of a value, and passes all of it on.
_WHOLE = table.SWITCH_OPS | table.VIEW_OPS
# What reads a value without computing with it, or rounds it anyway.
_NOT_COMPUTING = (*_FREE, Errors.PRODUCT, Errors.JUMPS, None)


class Exposure(enum.Enum):
    """What becomes of a rounding where the value is read, if it does no harm there."""

    ABSORBED = "a product rounds the value anyway, or its error is hidden by another"
    PASSES = "exposed if a rounding of the result is"
    HIDDEN = "exposed if the result leaves without meeting a product"


_Exposed = Exposure | Cause
# What becomes of the rounding of a value by the op that reads it, and by the error that
# the value carries: FLOAT32, ACTIVATED or BIASED. A sum may be smaller than its
# operands, and so may what is bounded or normalized.
_ROWS: Sequence[tuple[str, _Exposed, _Exposed, _Exposed]] = (
    ("MOVES", Exposure.PASSES, Exposure.PASSES, Exposure.PASSES),
    ("JUMPS", Cause.JUMP, Cause.JUMP, Cause.JUMP),
    ("MAGNIFIES", Cause.MAGNIFIED, Cause.MAGNIFIED, Cause.MAGNIFIED),
    ("SUMS", Cause.NO_PRODUCT, Cause.NEAR_NUMBERS, Exposure.HIDDEN),
    ("PRODUCT", Cause.NO_PRODUCT, Cause.NEAR_NUMBERS, Exposure.HIDDEN),
    ("ACTIVATES", Cause.NO_PRODUCT, Cause.NEAR_NUMBERS, Exposure.HIDDEN),
    ("NORMALIZES", Cause.NO_PRODUCT, Cause.NEAR_NUMBERS, Exposure.HIDDEN),
    ("SCALES", Cause.NO_PRODUCT, Exposure.PASSES, Exposure.HIDDEN),
    ("GRADIENT", Cause.NO_PRODUCT, Exposure.PASSES, Exposure.HIDDEN),
    ("AVERAGES", Cause.NO_PRODUCT, Exposure.PASSES, Exposure.HIDDEN),
    ("REDUCES", Cause.NO_PRODUCT, Exposure.PASSES, Exposure.HIDDEN),
)
_EXPOSURES = {Errors[kind]: exposures for kind, *exposures in _ROWS}
# Per node, by the number of an input.
_Exposures = Sequence[Mapping[int, _Exposed]]


class Sensitivity:
    """Where rounding does harm: found once for a graph, backwards from what is read."""

    def __init__(self, errors: CarriedErrors) -> None:
        """Follow roundings in a graph by the errors that its tensors carry."""
        self._errors, self._view = errors, errors.view
        self._kinds, self._inputs = errors.kinds, errors.inputs
        self._low_dtype, self._members = errors.low_dtype, errors.members
        self._repeated = frozenset(
            node.index for node in self._view.nodes if self._is_repeated(node)
        )
        self._cancelled = self._cancelling()
        # Tensors whose rounding is exposed by itself, and if it is hidden by another.
        self._exposed: dict[Port, Reason] = {}
        self._leaving: dict[Port, Reason] = {}
        self._leaving = self._reached_by(
            self._at_each(self._at_leaving), Exposure.HIDDEN
        )
        self._exposures = self._at_each(self._at_operand)
        self._exposed = self._reached_by(self._exposures, Exposure.PASSES)

    def harm(self, node: Node, slot: int) -> Reason | None:
        """Return the harm that a slot in 16 bits does; None if it does none."""
        error = self._errors.of_nodes[node.index].error
        kind = self._kinds[node.index]
        if kind is Errors.JUMPS:
            # What it makes of 16-bit numbers is none of the others, or a bool.
            return self._harm_of_operands(node, slot)
        if kind not in _FREE and error not in _OF_PRODUCTS:
            return self._why_float32(node)
        if kind is Errors.SCALES and (port := Port(node.index, 0)) in self._cancelled:
            return self._cancelled[port]
        return self._harm_of_result(node, slot) or self._harm_of_operands(node, slot)

    @property
    def products_alone(self) -> frozenset[int]:
        """The fused products of which only the product itself may be in 16 bits.

        Before   product(fused: BiasAdd) --> Sub(target)
        After    product(16 bits) --> cast_up --> BiasAdd(float32) --> Sub(target)
        """
        slots_of = self._errors.slots.slots_of
        return frozenset(
            node.index
            for node in self._view.nodes
            if self._kinds[node.index] is Errors.PRODUCT
            and len(parts_of(node.proto)) > 1
            and any(self.harm(node, slot) for slot in slots_of[node.index])
        )

    def _why_float32(self, node: Node) -> Reason:
        """Return why a node computes with float32 values, at best."""
        kind = self._kinds[node.index]
        errors = [self._errors.of(port).error for _, port in self._inputs[node.index]]
        if not any(error in _OF_PRODUCTS for error in errors):
            return Reason(Cause.NO_PRODUCT)
        if kind in (Errors.MAGNIFIES, Errors.REDUCES):
            return Reason(Cause.MAGNIFIED if kind is Errors.MAGNIFIES else Cause.SUM)
        if Error.FLOAT32 not in errors:
            is_chain = kind is Errors.SUMS and Error.ACTIVATED not in errors
            return Reason(Cause.CHAIN if is_chain else Cause.NEAR_NUMBERS)
        _, exact = self._inputs[node.index][errors.index(Error.FLOAT32)]
        source = self._source(exact)
        is_state = source.op in _STATES
        return Reason(Cause.STATE if is_state else Cause.PROMOTED, source.name)

    def _source(self, port: Port) -> Node:
        """Return the node whose value data movement has brought to a port."""
        node = self._view.nodes[port.node]
        while (
            self._kinds[node.index] is Errors.MOVES
            and node.op not in table.MERGE_OPS
            and self._inputs[node.index]
        ):
            node = self._view.nodes[self._inputs[node.index][0][1].node]
        return node

    def _harm_of_result(self, node: Node, slot: int) -> Reason | None:
        output_slot = self._errors.slots.output_slot
        for port in self._results(node, 0):
            governed = node.index in self._members or output_slot(*port) == slot
            if governed and port in self._exposed:
                return self._exposed[port]
        return None

    def _harm_of_operands(self, node: Node, slot: int) -> Reason | None:
        input_slot = self._errors.slots.input_slot
        for position, port in self._inputs[node.index]:
            if input_slot(node.index, position) != slot:
                continue
            exposure = self._exposures[node.index][position]
            if isinstance(exposure, Cause):
                return Reason(exposure, self._view.nodes[port.node].name)
            if harm := self._harm_behind(node, position, exposure):
                return harm
        return None

    def _harm_behind(
        self, node: Node, position: int, exposure: Exposure
    ) -> Reason | None:
        """Return the harm of an operand's rounding where a node's results go."""
        if exposure is Exposure.ABSORBED:
            return None
        harmed = self._leaving if exposure is Exposure.HIDDEN else self._exposed
        results = map(harmed.get, self._results(node, position))
        return next(filter(None, results), None)

    # Walks over tensors. Of all that a list holds, one stands for the others.

    def _place(self, port: Port) -> Port:
        """Return the port that stands for a tensor: one for all that a list holds."""
        members = self._members.get(port.node)
        return Port(members[0], 0) if members else port

    def _results(self, node: Node, position: int) -> Sequence[Port]:
        """Return the tensors that what a node reads at an input goes into."""
        if node.op == "IdentityN":
            return (Port(node.index, position),)
        if node.index in self._members:
            return (self._place(Port(node.index, 0)),)
        return self._view.output_ports(node.index)

    def _operands_of(self, port: Port) -> Iterator[tuple[Node, int, Port]]:
        """Yield what a tensor is made of; if it is read from a list, all put in."""
        for i in self._members.get(port.node, (port.node,)):
            node = self._view.nodes[i]
            for position, source in self._inputs[i]:
                if node.op != "IdentityN" or position == port.output:
                    yield node, position, source

    def _at_each(self, at: Callable[[Node, int, Port], _Exposed]) -> _Exposures:
        return [
            {position: at(node, position, port) for position, port in inputs}
            for node, inputs in zip(self._view.nodes, self._inputs, strict=True)
        ]

    def _reached_by(
        self, exposures: _Exposures, passing: Exposure
    ) -> dict[Port, Reason]:
        """Return the tensors whose rounding does harm at once, or by what passes it."""

        def harmed() -> Iterator[tuple[Port, Reason]]:
            for node in self._view.nodes:
                for position, port in self._inputs[node.index]:
                    exposure = exposures[node.index][position]
                    if isinstance(exposure, Cause):
                        yield self._place(port), Reason(exposure, node.name)
                    elif harm := self._harm_behind(node, position, exposure):
                        yield self._place(port), harm

        def sources(port: Port) -> Iterator[Port]:
            for node, position, source in self._operands_of(port):
                if exposures[node.index][position] is passing:
                    yield self._place(source)

        return _spread(harmed(), sources)

    def _cancelling(self) -> dict[Port, Reason]:
        """Return the tensors whose sums go into another sum or a difference.

        Roundings of values that are much alike add up, and what is left of them may be
        small, as in the gradients of a softmax and of a normalization:

          values, weights --> Mul --> Sum --> Sub(values)     Mul in float32
        """

        def made_of(port: Port, *kinds: Errors) -> Iterator[Port]:
            for node, _, source in self._operands_of(port):
                if self._kinds[node.index] in kinds:
                    yield self._place(source)

        summands = (
            (self._place(port), Reason(Cause.NEAR_NUMBERS, node.name))
            for node in self._view.nodes
            if self._kinds[node.index] is Errors.SUMS
            for _, port in self._inputs[node.index]
        )
        parts = _spread(
            summands,
            lambda port: made_of(port, Errors.MOVES, Errors.SCALES, Errors.REDUCES),
        )
        summed_up = (
            (source, reason)
            for port, reason in parts.items()
            for source in made_of(port, Errors.REDUCES)
        )
        return _spread(summed_up, lambda port: made_of(port, Errors.MOVES))

    def _is_repeated(self, node: Node) -> bool:
        """Return whether a loop computes with what this brings to each iteration.

        By hand its products round what is made of it, each time differently, so that
        a sum over the iterations loses less than by one rounding before the loop.
        """
        if not self._is_same_each_time(node):
            return False
        view = self._view

        def passes_on(i: int) -> bool:
            return view.nodes[i].op in _WHOLE

        whole = reached([node.index], lambda i: filter(passes_on, view.read_by(i)))
        readers = (reader for i in whole for reader in view.read_by(i))
        return any(
            self._kinds[i] not in _NOT_COMPUTING for i in readers if not passes_on(i)
        )

    def _is_same_each_time(self, node: Node) -> bool:
        """Return whether a node brings the same value to each iteration of a loop."""
        if node.op in table.MERGE_OPS:
            return any(
                self._view.nodes[port.node].op in table.NEXT_ITERATION_OPS
                and self._source(port) is node
                for _, port in self._inputs[node.index]
            )
        return node.op in table.ENTER_OPS and attr_of(node.proto, "is_constant").b

    # What becomes of a rounding at one operand.

    def _at_leaving(self, node: Node, position: int, port: Port) -> _Exposed:
        """Return how what was made of a biased product goes on: sums do not end it.

        What is left once all that is alike has cancelled may be smaller than its error.
        """
        is_factor = self._kinds[node.index] is Errors.SCALES
        if is_factor and Port(node.index, 0) in self._cancelled:
            return Cause.NEAR_NUMBERS
        exposure = self._exposure(node, position, Error.BIASED)
        is_hidden = exposure in (Cause.NEAR_NUMBERS, Exposure.PASSES)
        return Exposure.HIDDEN if is_hidden else exposure

    def _at_operand(self, node: Node, position: int, port: Port) -> _Exposed:
        return self._exposure(node, position, self._errors.of(port).error)

    def _exposure(self, node: Node, position: int, error: Error) -> _Exposed:
        """Return the exposure of a rounding at an operand that carries an error."""
        kind = self._kinds[node.index]
        if error in (Error.PRODUCT, Error.EXACT) or kind is Errors.IGNORES:
            return Exposure.ABSORBED
        is_epilogue = position > 1 and "fused_ops" in node.proto.attr
        if kind is Errors.PRODUCT and not is_epilogue:
            return Exposure.ABSORBED
        if node.op == "Cast":
            return self._at_cast(node)
        if kind is None or node.name in self._view.item.untouchable:
            return Cause.AFTER_PRODUCTS
        if node.index in self._repeated:
            return Cause.REPEATED
        return self._in_particular(node, position, error) or _EXPOSURES[kind][error]

    def _in_particular(
        self, node: Node, position: int, error: Error
    ) -> _Exposed | None:
        """Return the exposure at an operand where more than the op decides; or None."""
        kind = self._kinds[node.index]
        is_bare = error is Error.FLOAT32
        result = self._errors.of_nodes[node.index].error
        match kind:
            case Errors.JUMPS if self._asks_sign(node):
                return Exposure.ABSORBED
            case Errors.SCALES:
                # By hand errors of many elements average out; those of one number
                # move all of a tensor alike.
                if is_bare and self._errors.is_one_number(node.inputs[position]):
                    return Cause.FACTOR
                others = (p for i, p in self._inputs[node.index] if i != position)
                if any(self._errors.of(p).error is Error.PRODUCT for p in others):
                    return Exposure.ABSORBED
                return Exposure.PASSES if is_bare and result in _OF_PRODUCTS else None
            case Errors.GRADIENT if position != (gradient := gradient_input(node.op)):
                if table.OTHERS[node.op] is Others.CANCELS:
                    return Cause.NEAR_NUMBERS
                carried = self._errors.of(node.inputs[gradient])
                looks_at_signs = table.OTHERS[node.op] is Others.SIGN
                if looks_at_signs or carried.error is Error.PRODUCT:
                    return Exposure.ABSORBED
            case Errors.SUMS | Errors.PRODUCT if is_bare:
                is_bias = self._errors.is_broadcast(node, position)
                is_made = result in (Error.ACTIVATED, Error.BIASED)
                return Exposure.PASSES if is_bias and is_made else None
        return None

    def _at_cast(self, node: Node) -> _Exposed:
        target = node.proto.attr["DstT"].type
        if target == self._low_dtype:
            return Exposure.ABSORBED
        return Cause.AFTER_PRODUCTS if target in FLOATING else Cause.JUMP

    def _asks_sign(self, node: Node) -> bool:
        """Return whether a value is compared with zero, which rounding leaves alone."""
        if node.op not in _ORDERS or self._low_dtype != types_pb2.DT_BFLOAT16:
            # float16 makes zeros of small numbers.
            return False
        return any(self._is_zero(port) for port in node.inputs)

    def _is_zero(self, port: Port) -> bool:
        proto = self._view.nodes[port.node].proto
        if proto.op != "Const" or proto.name in self._view.item.untouchable:
            return str(proto.op) == "ZerosLike"
        tensor = proto.attr["value"].tensor
        return not any(tensor.float_val) and not any(tensor.tensor_content)


def _spread(
    starts: Iterable[tuple[Port, Reason]], spreads_to: Callable[[Port], Iterable[Port]]
) -> dict[Port, Reason]:
    """Walk from harmed tensors back to those whose rounding would end up in them.

    What is harmed by itself keeps its own reason.
    """
    reasons: dict[Port, Reason] = {}
    for port, reason in starts:
        reasons.setdefault(port, reason)
    waiting = list(reasons)
    while waiting:
        port = waiting.pop()
        for source in spreads_to(port):
            if source not in reasons:
                reasons[source] = reasons[port]
                waiting.append(source)
    return reasons
