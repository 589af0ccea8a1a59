"""Which values may be rounded to 16 bits between products, and what rounding harms.

The yardstick is the program whose products' operands are rounded by hand. A value that
carries a product's error (`Grade.PRODUCT`) may be rounded wherever it goes. Any other
may where every way on leads into a product, which would round it anyway, and nothing
on the way makes more of the error than the product does:

  MatMul --> BiasAdd --> Tanh --> MatMul       all of it in 16 bits
  MatMul --> BiasAdd --> Sub(target)           the last product alone
  MatMul --> Sigmoid --> Log                   likewise: sigmoid may be near 1
  x --> Mul(1/255) --> MatMul                  the product alone; x is cast after Mul
"""

from __future__ import annotations

import enum
import functools
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
from grappler_pass.graph.op_table import (
    ALLOW,
    EINSUM_OPS,
    ERRORS,
    MERGE_OPS,
    NEXT_ITERATION_OPS,
    Errors,
    Others,
)
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


class Grade(enum.IntEnum):
    """How exact a tensor is by hand, the more exact the smaller; for `min`."""

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


MADE = (Grade.ACTIVATED, Grade.BIASED, Grade.PRODUCT)

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


class Steps(NamedTuple):
    """What a value went through since the last product: sums and rounded factors."""

    sums: int = 0
    factors: int = 0

    @property
    def are_few(self) -> bool:
        """Return whether rounding at each of them leaves the yardstick room."""
        return self.sums <= LONGEST_CHAIN and self.factors <= MOST_FACTORS


class ProductErrors:
    """What each node makes of errors, and how exact its results are by hand.

    Attributes:
      members: number of a node that writes or reads a list of tensors to all nodes of
        that list.
      kinds: per node; None for an op that is not in the table.
      inputs: per node, the float32 tensors that it reads, with their positions.
      grades: per node, of its first output.
      steps: per node, the most that its value went through behind a product.
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
        """Grade every tensor, inputs first; what goes around a loop is FLOAT32.

        What is on the allow list is a product, unless it `stays` in float32 since the
        user says so. Unknown shapes count as of one size.
        """
        self.view, self.slots, self._shapes = view, slots, shapes
        self.low_dtype = low_dtype
        self.members = members
        self.kinds = [self._kind(node, lists, stays) for node in view.nodes]
        self.inputs = [self._floats(node) for node in view.nodes]
        self.grades = [Grade.FLOAT32] * len(view.nodes)
        self.steps = [Steps()] * len(view.nodes)
        self._read: dict[int, tuple[Grade, Steps]] = {}
        # What is put on a list is known when all has been graded once.
        for _ in range(2 if members else 1):
            for i in view.order:
                self.grades[i], self.steps[i] = self._graded(view.nodes[i])
            self._read_from_lists()

    def grade(self, port: Port) -> Grade:
        """Return how exact a tensor is; statistics beside a result are in float32."""
        node = self.view.nodes[port.node]
        if node.op == "IdentityN":
            return self.grade(node.inputs[port.output])
        if port.output and self.kinds[port.node] in _WITH_STATISTICS:
            return Grade.FLOAT32
        return self.grades[port.node]

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
        self, node: Node, lists: OpLists, stays: Callable[[NodeDef], object]
    ) -> Errors | None:
        kind = ERRORS.get(node.op)
        if lists.list_of(node.op) == ALLOW or node.op in lists.freed:
            # Whoever moves an op by hand has decided that it may be rounded.
            kind = Errors.PRODUCT
        elif kind is Errors.PRODUCT:
            return Errors.REDUCES
        if kind is not Errors.PRODUCT:
            return kind
        if stays(node.proto):
            return Errors.REDUCES
        known = (known_shape(self._shapes, self.view, port) for port in node.inputs)
        if has_sum(node.proto, tuple(known)):
            return kind
        return None if "fused_ops" in node.proto.attr else Errors.SCALES

    def _read_from_lists(self) -> None:
        """Note of each list the worst that is put on it, for those who read it."""
        for group in dict.fromkeys(map(tuple, self.members.values())):
            ports = [p for i in group for _, p in self.inputs[i]]
            grade = min(map(self.grade, ports), default=Grade.FLOAT32)
            self._read.update(dict.fromkeys(group, (grade, self._most(ports))))

    def _graded(self, node: Node) -> tuple[Grade, Steps]:
        kind = self.kinds[node.index]
        if node.index in self._read:
            return self._read[node.index]
        if node.name in self.view.item.feed:
            return Grade.FLOAT32, Steps()
        if node.op == "Const":
            return self._constant(node), Steps()
        if node.op == "Cast":
            return self._cast(node), Steps()
        if kind is None:
            return Grade.FLOAT32, Steps()
        if kind is Errors.IGNORES:
            return Grade.EXACT, Steps()
        read = self.inputs[node.index]
        grades = [self.grade(port) for _, port in read]
        steps = self._most(port for _, port in read)
        worst = min(grades, default=Grade.FLOAT32)
        match kind:
            case Errors.PRODUCT:
                return self._product(node)
            case Errors.MOVES:
                goes_around = node.op in MERGE_OPS and any(
                    self.view.nodes[port.node].op in NEXT_ITERATION_OPS
                    for port in node.inputs
                )
                return Grade.FLOAT32 if goes_around else worst, steps
            case Errors.SCALES:
                return self._scaled(node, read, grades, steps)
            case Errors.SUMS:
                return self._summed(node, read, grades, steps)
            case Errors.GRADIENT:
                gradient = node.inputs[gradient_input(node.op)]
                return self.grade(gradient), self.steps[gradient.node]
            case Errors.ACTIVATES:
                is_made = worst in (Grade.BIASED, Grade.PRODUCT)
                return Grade.ACTIVATED if is_made else Grade.FLOAT32, steps
            case Errors.AVERAGES:
                return Grade.ACTIVATED if worst in MADE else Grade.FLOAT32, steps
            case Errors.NORMALIZES:
                return self._normalized(node, grades, steps)
        return Grade.FLOAT32, Steps()

    def _most(self, ports: Iterable[Port]) -> Steps:
        found = [self.steps[p.node] for p in ports if self.grade(p) in MADE]
        sums = max((steps.sums for steps in found), default=0)
        return Steps(sums, max((steps.factors for steps in found), default=0))

    def _constant(self, node: Node) -> Grade:
        is_open = node.name in self.view.item.untouchable
        if is_open or node.proto.attr["dtype"].type != FLOAT32:
            return Grade.FLOAT32
        values = values_of(node.proto.attr["value"].tensor)
        is_exact = self._holds(values[:_FIRST_VALUES]) and self._holds(values)
        return Grade.EXACT if is_exact else Grade.FLOAT32

    def _holds(self, values: np.ndarray) -> bool:
        with np.errstate(over="ignore"):
            rounded = values.astype(NUMPY_DTYPES[self.low_dtype]).astype(np.float32)
        return bool(np.array_equal(values, rounded, equal_nan=True))

    def _cast(self, node: Node) -> Grade:
        """Masks are exact, and what was in 16 bits is as inexact as a product."""
        source = self.slots.input_dtype(node.index, 0)
        if source in (types_pb2.DT_BOOL, types_pb2.DT_UINT8):
            return Grade.EXACT
        return Grade.PRODUCT if source == self.low_dtype else Grade.FLOAT32

    def _product(self, node: Node) -> tuple[Grade, Steps]:
        """Return the grade of a product with what is fused behind it."""
        grade, steps = Grade.PRODUCT, Steps()
        for name, own in fused_parts(node.proto):
            if name == "Add" and not self.is_broadcast(node, own[0]):
                grade, steps = self._with(grade, steps, node.inputs[own[0]])
            elif name in ("Add", "BiasAdd", "FusedBatchNorm"):
                grade = min(grade, Grade.BIASED)
            elif ERRORS.get(name) not in (Errors.MOVES, Errors.SCALES):
                is_made = grade in (Grade.BIASED, Grade.PRODUCT)
                grade = Grade.ACTIVATED if is_made else Grade.FLOAT32
        return grade, steps

    def _with(self, grade: Grade, steps: Steps, port: Port) -> tuple[Grade, Steps]:
        """Return what becomes of a value to which another of its size is added."""
        other = self.grade(port)
        most = self.steps[port.node]
        steps = Steps(max(steps.sums, most.sums) + 1, max(steps.factors, most.factors))
        is_made = other in (Grade.BIASED, Grade.PRODUCT) and steps.are_few
        return min(grade, other) if is_made else Grade.FLOAT32, steps

    def _normalized(
        self, node: Node, grades: Sequence[Grade], steps: Steps
    ) -> tuple[Grade, Steps]:
        is_made = grades and grades[0] in (Grade.BIASED, Grade.PRODUCT)
        grade = Grade.BIASED if is_made else Grade.FLOAT32
        if node.op == "_FusedBatchNormEx" and len(node.inputs) > _SIDE_INPUT:
            return self._with(grade, steps, node.inputs[_SIDE_INPUT])
        return grade, steps

    def _scaled(
        self,
        node: Node,
        read: list[tuple[int, Port]],
        grades: list[Grade],
        steps: Steps,
    ) -> tuple[Grade, Steps]:
        # A gate of float32 values: as exact as they are wanted to be.
        gate = Grade.FLOAT32 in self._full_size(node, read, grades)
        if any(
            grade is Grade.FLOAT32 and not self.is_one_number(port)
            for (_, port), grade in zip(read, grades, strict=True)
        ):
            # With a gate, what it lets through is rounded beside it.
            rounded = 2 if gate and Grade.PRODUCT not in grades else 1
            steps = Steps(steps.sums, steps.factors + rounded)
        if not steps.are_few or not any(grade in MADE for grade in grades):
            return Grade.FLOAT32, steps
        if Grade.PRODUCT in grades:
            return Grade.BIASED if self._shrinks(node) else Grade.PRODUCT, steps
        made = (grade for grade in grades if grade in MADE)
        return Grade.ACTIVATED if gate else min(made), steps

    def _shrinks(self, node: Node) -> bool:
        """Return whether a constant takes values to where float16 holds fewer bits."""
        if self.low_dtype != types_pb2.DT_HALF:
            return False
        nodes = self.view.nodes
        for position, port in enumerate(node.inputs):
            if nodes[port.node].op == "Const":
                tensor = nodes[port.node].proto.attr["value"].tensor
                most = np.abs(values_of(tensor)).max(initial=0.0)
                divides = position == 1 and "Div" in node.op
                if most > 1 / _SMALL_FACTOR if divides else 0 < most < _SMALL_FACTOR:
                    return True
        return False

    def _full_size(
        self, node: Node, read: list[tuple[int, Port]], grades: list[Grade]
    ) -> list[Grade]:
        """Return the grades of the operands that are not broadcast."""
        return [
            grade
            for (position, _), grade in zip(read, grades, strict=True)
            if not self.is_broadcast(node, position)
        ]

    def _summed(
        self,
        node: Node,
        read: list[tuple[int, Port]],
        grades: list[Grade],
        steps: Steps,
    ) -> tuple[Grade, Steps]:
        own = self._full_size(node, read, grades)
        if not own or min(own) not in (Grade.BIASED, Grade.PRODUCT):
            return Grade.FLOAT32, Steps()
        links = _LINKS_OF_ADD_N if node.op == "AddN" else 1
        steps = Steps(steps.sums + links * (len(own) - 1), steps.factors)
        if not steps.are_few:
            return Grade.FLOAT32, steps
        is_biased = len(own) < len(grades) or Grade.EXACT in own
        return Grade.BIASED if is_biased else min(own), steps


# Their results are as exact as what they read.
_FREE = (Errors.MOVES, Errors.IGNORES)
_ORDERS = table.COMPARISON_OPS - {"Equal", "NotEqual"}
_STATES = table.MERGE_OPS | table.READ_OPS | table.REF_VARIABLE_OPS
# What reads all of a value, and hands all of it on.
_WHOLE = table.SWITCH_OPS | table.VIEW_OPS
# What reads a value without computing with it, or rounds it anyway.
_NOT_COMPUTING = (*_FREE, Errors.PRODUCT, Errors.JUMPS, None)


class _Way(enum.Enum):
    """What becomes of a rounded value where it is read."""

    ENDS = "nothing: a product rounds it anyway, or its error is hidden by another"
    GOES_ON = "it harms if rounding the result does"
    LEAKS = "it harms if the result gets out without meeting a product"


_Harm = _Way | Cause
# Per node, by the number of an input.
_Ways = Sequence[Mapping[int, _Harm]]


class Roundings:
    """Where rounding harms: found once for a graph, backwards from what is read."""

    def __init__(self, errors: ProductErrors) -> None:
        """Look at a graph by the errors of its products."""
        self._errors = errors
        self._low_dtype = errors.low_dtype
        self._lists = errors.members
        self._view = errors.view
        self._kinds = errors.kinds
        self._inputs = errors.inputs
        self._repeated = frozenset(
            node.index for node in self._view.nodes if self._is_repeated(node)
        )
        self._cancelled = self._cancelling()
        self._leaks: dict[Port, Reason] = {}
        self._harmed: dict[Port, Reason] = {}
        leaking = self._ways_by(self._leak_way)
        self._leaks = self._harmed_through(leaking, _Way.LEAKS)
        self._ways = self._ways_by(self._way)
        self._harmed = self._harmed_through(self._ways, _Way.GOES_ON)

    def harm(self, node: Node, slot: int) -> Reason | None:
        """Return what a node harms if a slot of it is in 16 bits; None if nothing."""
        grade = self._errors.grades[node.index]
        kind = self._kinds[node.index]
        if kind is Errors.JUMPS:
            # What it makes of 16-bit numbers is none of the others, or a bool.
            return self._harm_of_operands(node, slot)
        if kind not in _FREE and grade not in MADE:
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

    def _harm_of_result(self, node: Node, slot: int) -> Reason | None:
        output_slot = self._errors.slots.output_slot
        for port in self._results(node):
            governed = node.index in self._lists or output_slot(*port) == slot
            if governed and port in self._harmed:
                return self._harmed[port]
        return None

    def _harm_of_operands(self, node: Node, slot: int) -> Reason | None:
        input_slot = self._errors.slots.input_slot
        for position, port in self._inputs[node.index]:
            if input_slot(node.index, position) != slot:
                continue
            way = self._ways[node.index][position]
            if isinstance(way, Cause):
                return Reason(way, self._view.nodes[port.node].name)
            harm = self._harm_at(node, position, way)
            if harm is not None:
                return harm
        return None

    def _cancelling(self) -> dict[Port, Reason]:
        """Return the tensors whose sums go into another sum or a difference.

        Roundings of values that are much alike add up, and what is left of them may be
        small, as in the gradients of a softmax and of a normalization:

          values, weights --> Mul --> Sum --> Sub(values)     Mul in float32
        """
        factors = (Errors.MOVES, Errors.SCALES, Errors.REDUCES)
        summands = (
            (self._place(port), Reason(Cause.NEAR_NUMBERS, node.name))
            for node in self._view.nodes
            if self._kinds[node.index] is Errors.SUMS
            for _, port in self._inputs[node.index]
        )
        parts = _spread(summands, functools.partial(self._made_of, kinds=factors))
        summed_up = (
            (source, reason)
            for port, reason in parts.items()
            for source in self._made_of(port, (Errors.REDUCES,))
        )
        movement = functools.partial(self._made_of, kinds=(Errors.MOVES,))
        return _spread(summed_up, movement)

    def _made_of(self, port: Port, kinds: Sequence[Errors]) -> Iterator[Port]:
        """Yield what a tensor is made of by a node of some kinds."""
        for node, _, source in self._operands_behind(port):
            if self._kinds[node.index] in kinds:
                yield self._place(source)

    def _results(self, node: Node, position: int = 0) -> Sequence[Port]:
        """Return the tensors that what a node reads at an input goes into."""
        if node.op == "IdentityN":
            return (Port(node.index, position),)
        if node.index in self._lists:
            return (self._place(Port(node.index, 0)),)
        return self._view.output_ports(node.index)

    def _place(self, port: Port) -> Port:
        """Return what stands for a tensor: of all that a list holds, its first node."""
        members = self._lists.get(port.node)
        return Port(members[0], 0) if members else port

    def _why_float32(self, node: Node) -> Reason:
        """Return why a node computes with float32 values, at best."""
        kind = self._kinds[node.index]
        grades = [self._errors.grade(port) for _, port in self._inputs[node.index]]
        if not any(grade in MADE for grade in grades):
            return Reason(Cause.NO_PRODUCT)
        if kind in (Errors.MAGNIFIES, Errors.REDUCES):
            return Reason(Cause.MAGNIFIED if kind is Errors.MAGNIFIES else Cause.SUM)
        if Grade.FLOAT32 not in grades:
            is_chain = kind is Errors.SUMS and Grade.ACTIVATED not in grades
            return Reason(Cause.CHAIN if is_chain else Cause.NEAR_NUMBERS)
        _, exact = self._inputs[node.index][grades.index(Grade.FLOAT32)]
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

    def _operands_behind(self, port: Port) -> Iterator[tuple[Node, int, Port]]:
        """Yield what a tensor is made of; if it is read from a list, all put in."""
        for i in self._lists.get(port.node, (port.node,)):
            node = self._view.nodes[i]
            for position, source in self._inputs[i]:
                if node.op != "IdentityN" or position == port.output:
                    yield node, position, source

    def _ways_by(self, way_at: Callable[[Node, int, Port], _Harm]) -> _Ways:
        return [
            {at: way_at(node, at, port) for at, port in self._inputs[node.index]}
            for node in self._view.nodes
        ]

    def _harmed_through(self, ways: _Ways, passing: _Way) -> dict[Port, Reason]:
        """Return the tensors whose rounding harms at once, or by ways that pass it."""

        def harmful() -> Iterator[tuple[Port, Reason]]:
            for node in self._view.nodes:
                for position, port in self._inputs[node.index]:
                    way = ways[node.index][position]
                    if isinstance(way, Cause):
                        yield self._place(port), Reason(way, node.name)
                    elif harm := self._harm_at(node, position, way):
                        yield self._place(port), harm

        def sources(port: Port) -> Iterator[Port]:
            for node, position, source in self._operands_behind(port):
                if ways[node.index][position] is passing:
                    yield self._place(source)

        return _spread(harmful(), sources)

    def _leak_way(self, node: Node, position: int, _: Port) -> _Harm:
        """Return how what was made of a biased product goes on: sums do not end it.

        What is left once all that is alike has cancelled may be smaller than its error.
        """
        is_factor = self._kinds[node.index] is Errors.SCALES
        if is_factor and Port(node.index, 0) in self._cancelled:
            return Cause.NEAR_NUMBERS
        way = self._way_of(node, position, Grade.BIASED)
        numbers_only = way is Cause.NEAR_NUMBERS or way is _Way.GOES_ON
        return _Way.LEAKS if numbers_only else way

    def _harm_at(self, node: Node, position: int, way: _Way) -> Reason | None:
        if way is _Way.ENDS:
            return None
        where = self._leaks if way is _Way.LEAKS else self._harmed
        found = (where.get(port) for port in self._results(node, position))
        return next((reason for reason in found if reason), None)

    def _way(self, node: Node, position: int, port: Port) -> _Harm:
        return self._way_of(node, position, self._errors.grade(port))

    def _way_of(self, node: Node, position: int, grade: Grade) -> _Harm:
        """Return what becomes of a value of some grade at one operand of a node."""
        kind = self._kinds[node.index]
        if grade in (Grade.PRODUCT, Grade.EXACT) or kind is Errors.IGNORES:
            return _Way.ENDS
        is_epilogue = position > 1 and "fused_ops" in node.proto.attr
        if kind is Errors.PRODUCT and not is_epilogue:
            return _Way.ENDS
        if node.op == "Cast":
            return self._at_cast(node)
        if kind is None or node.name in self._view.item.untouchable:
            return Cause.AFTER_PRODUCTS
        if node.index in self._repeated:
            return Cause.REPEATED
        is_bare = grade is Grade.FLOAT32
        on = _Way.LEAKS if grade is Grade.BIASED else _Way.GOES_ON
        match kind:
            case Errors.MOVES:
                return _Way.GOES_ON
            case Errors.JUMPS:
                return _Way.ENDS if self._asks_sign(node) else Cause.JUMP
            case Errors.MAGNIFIES:
                return Cause.MAGNIFIED
            case Errors.SCALES:
                return self._at_factor(node, position, is_bare, on)
            case Errors.GRADIENT:
                return self._at_gradient(node, position, is_bare, on)
            case Errors.SUMS | Errors.PRODUCT:
                return self._at_sum(node, position, grade)
        if is_bare:
            return Cause.NO_PRODUCT
        bounds = kind in (Errors.ACTIVATES, Errors.NORMALIZES)
        return Cause.NEAR_NUMBERS if bounds and grade is Grade.ACTIVATED else on

    def _is_repeated(self, node: Node) -> bool:
        """Return whether a loop computes with what this brings to each iteration.

        By hand its products round what is made of it, each time differently, so that
        a sum over the iterations loses less than by one rounding before the loop.
        """
        if not self._is_same_each_time(node):
            return False
        view = self._view

        def hands_on(i: int) -> bool:
            return view.nodes[i].op in _WHOLE

        whole = reached([node.index], lambda i: filter(hands_on, view.read_by(i)))
        readers = (reader for i in whole for reader in view.read_by(i))
        return any(
            self._kinds[i] not in _NOT_COMPUTING for i in readers if not hands_on(i)
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

    def _at_cast(self, node: Node) -> _Harm:
        target = node.proto.attr["DstT"].type
        if target == self._low_dtype:
            return _Way.ENDS
        return Cause.AFTER_PRODUCTS if target in FLOATING else Cause.JUMP

    def _asks_sign(self, node: Node) -> bool:
        """Return whether a value is compared with zero, which rounding leaves alone."""
        if node.op not in _ORDERS or self._low_dtype != types_pb2.DT_BFLOAT16:
            # float16 makes zeros of small numbers.
            return False
        return any(
            self._view.nodes[port.node].op == "ZerosLike" or self._is_zero(port)
            for port in node.inputs
        )

    def _is_zero(self, port: Port) -> bool:
        proto = self._view.nodes[port.node].proto
        if proto.op != "Const" or proto.name in self._view.item.untouchable:
            return False
        tensor = proto.attr["value"].tensor
        return not any(tensor.float_val) and not any(tensor.tensor_content)

    def _at_factor(self, node: Node, position: int, is_bare: bool, on: _Way) -> _Harm:
        """Return what becomes of a factor; one of a whole tensor moves all of it alike.

        By hand errors of many elements average out; such a factor's would not.
        """
        if is_bare and self._errors.is_one_number(node.inputs[position]):
            return Cause.FACTOR
        others = (p for i, p in self._inputs[node.index] if i != position)
        if any(self._errors.grade(port) is Grade.PRODUCT for port in others):
            return _Way.ENDS
        if not is_bare:
            return on
        is_made = self._errors.grades[node.index] in MADE
        return _Way.GOES_ON if is_made else Cause.NO_PRODUCT

    def _at_gradient(self, node: Node, position: int, is_bare: bool, on: _Way) -> _Harm:
        gradient, others = gradient_input(node.op), table.OTHERS[node.op]
        if position != gradient:
            if others is Others.CANCELS:
                return Cause.NEAR_NUMBERS
            grade = self._errors.grade(node.inputs[gradient])
            if others is Others.SIGN or grade is Grade.PRODUCT:
                return _Way.ENDS
        return Cause.NO_PRODUCT if is_bare else on

    def _at_sum(self, node: Node, position: int, grade: Grade) -> _Harm:
        """Return what becomes of an operand that may be larger than the sum."""
        if grade is Grade.ACTIVATED:
            return Cause.NEAR_NUMBERS
        if grade is Grade.FLOAT32:
            is_bias = self._errors.is_broadcast(node, position)
            result = self._errors.grades[node.index]
            made = result in (Grade.ACTIVATED, Grade.BIASED)
            return _Way.GOES_ON if is_bias and made else Cause.NO_PRODUCT
        return _Way.LEAKS


def _spread(
    starts: Iterable[tuple[Port, Reason]], spreads_to: Callable[[Port], Iterable[Port]]
) -> dict[Port, Reason]:
    """Walk from harmed tensors back to those whose rounding would end up in them.

    What is harmed by itself keeps its own reason.
    """
    found: dict[Port, Reason] = {}
    for port, reason in starts:
        found.setdefault(port, reason)
    waiting = list(found)
    while waiting:
        port = waiting.pop()
        for source in spreads_to(port):
            if source not in found:
                found[source] = found[port]
                waiting.append(source)
    return found
