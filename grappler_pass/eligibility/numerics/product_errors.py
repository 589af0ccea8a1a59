"""How exact each tensor is when the operands of products are rounded by hand.

A product of rounded operands is off by about the 16-bit epsilon of itself. What is made
of it inherits that error as `op_table.Errors` says of each op, and may be rounded
again at no greater loss; what is made of no product is exact to float32 and may not.

  MatMul --> BiasAdd --> Sigmoid --> Mul(MatMul) --> AddV2(x)
  PRODUCT    BIASED      ACTIVATED   PRODUCT         FLOAT32
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.eligibility.existing_casts import NUMPY_DTYPES
from grappler_pass.eligibility.numerics.contractions import has_sum
from grappler_pass.eligibility.numerics.exactness import values_of
from grappler_pass.graph.fusions import fused_parts
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import (
    ALLOW,
    ERRORS,
    MERGE_OPS,
    NEXT_ITERATION_OPS,
    Errors,
)
from grappler_pass.graph.op_traits import gradient_input
from grappler_pass.graph.shapes import Shapes, known_shape
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView, Node, Port


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
