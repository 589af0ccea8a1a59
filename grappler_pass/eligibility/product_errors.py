"""How exact each tensor is when the operands of products are rounded by hand.

A product of rounded operands is off by about the 16-bit epsilon of itself. What is made
of it inherits that error as `op_table.Errors` says of each op, and may be rounded
again at no greater loss; what is made of no product is exact to float32 and may not.

  MatMul --> BiasAdd --> Sigmoid --> Mul(MatMul) --> AddV2(x)
  PRODUCT    BIASED      ACTIVATED   PRODUCT         FLOAT32
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

import numpy as np
from tensorflow.core.framework import types_pb2

from grappler_pass.casts import NUMPY_DTYPES
from grappler_pass.eligibility.constant_ranges import values_of
from grappler_pass.eligibility.contractions import has_sum
from grappler_pass.graph import MERGE_OPS, NEXT_ITERATION_OPS, GraphView, Node, Port
from grappler_pass.op_lists import OpLists
from grappler_pass.op_table import ALLOW, ERRORS, Errors
from grappler_pass.shapes import Shapes, known_shape
from grappler_pass.type_slots import FLOAT32, NO_SLOT, SlotTable


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

# Ops with statistics in float32 beside their first result.
_WITH_STATISTICS = (Errors.NORMALIZES, Errors.GRADIENT)

# Parts of fused products that keep the grade of what they read.
_LINEAR_PARTS = frozenset({b"Relu", b"Relu6", b"LeakyRelu", b"Mul"})
_BROADCAST_PARTS = frozenset({b"BiasAdd", b"FusedBatchNorm"})


class Others(enum.Enum):
    """What an op that hands a gradient on makes of its other operands."""

    SIGN = "looks at signs, or at which element is the largest"
    SMOOTH = "multiplies by a function as exact as they are"
    CANCELS = "subtracts them from 1"


# Position of the gradient among the inputs, and what becomes of the others.
GRADIENT_INPUTS: dict[str, tuple[int, Others]] = {
    "AvgPool3DGrad": (1, Others.SIGN),
    "AvgPoolGrad": (1, Others.SIGN),
    "EluGrad": (0, Others.CANCELS),
    "FusedBatchNormGradV2": (0, Others.SMOOTH),
    "FusedBatchNormGradV3": (0, Others.SMOOTH),
    "InvGrad": (1, Others.SMOOTH),
    "LRNGrad": (0, Others.SMOOTH),
    "LeakyReluGrad": (0, Others.SIGN),
    "MaxPool3DGrad": (2, Others.SIGN),
    "MaxPool3DGradGrad": (2, Others.SIGN),
    "MaxPoolGrad": (2, Others.SIGN),
    "MaxPoolGradGrad": (2, Others.SIGN),
    "MaxPoolGradGradV2": (2, Others.SIGN),
    "MaxPoolGradV2": (2, Others.SIGN),
    "MaxPoolGradWithArgmax": (1, Others.SIGN),
    "ReciprocalGrad": (1, Others.SMOOTH),
    "Relu6Grad": (0, Others.SIGN),
    "ReluGrad": (0, Others.SIGN),
    "ResizeBilinearGrad": (0, Others.SIGN),
    "RsqrtGrad": (1, Others.SMOOTH),
    "SeluGrad": (0, Others.CANCELS),
    "SigmoidGrad": (1, Others.CANCELS),
    "SoftplusGrad": (0, Others.SMOOTH),
    "SoftsignGrad": (0, Others.SMOOTH),
    "SqrtGrad": (1, Others.SMOOTH),
    "TanhGrad": (1, Others.CANCELS),
    "_FusedBatchNormGradEx": (0, Others.SMOOTH),
}


@dataclasses.dataclass(frozen=True, eq=False)
class ProductErrors:
    """What each node makes of errors, and how exact its results are by hand.

    Attributes:
      view: the graph.
      slots: of `view`.
      shapes: static shapes by name of node; what is unknown counts as of one size.
      kinds: per node; None for an op that is not in the table.
      grades: per node, of its first output.
      chained: per node, the sums in a row that its value went through, if it is made of
        products alone.
    """

    view: GraphView
    slots: SlotTable
    shapes: Shapes
    kinds: Sequence[Errors | None]
    grades: Sequence[Grade]
    chained: Sequence[int]

    def grade(self, port: Port) -> Grade:
        """Return how exact a tensor is; statistics beside a result are in float32."""
        node = self.view.nodes[port.node]
        if node.op == "IdentityN":
            return self.grade(node.inputs[port.output])
        if port.output and self.kinds[port.node] in _WITH_STATISTICS:
            return Grade.FLOAT32
        return self.grades[port.node]

    def floats(self, node: Node) -> list[tuple[int, Port]]:
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

    def is_broadcast(self, node: Node, position: int) -> bool:
        """Tell whether an operand is smaller than the result that it is added to."""
        if node.op.startswith("BiasAdd"):
            return position == 1
        own = known_shape(self.shapes, self.view, node.inputs[position])
        result = known_shape(self.shapes, self.view, Port(node.index, 0))
        if own is None or result is None:
            return own is not None and len(own) == 0
        if len(own) != len(result):
            return len(own) < len(result)
        return any(a == 1 and b != 1 for a, b in zip(own, result, strict=True))


def product_errors(
    view: GraphView,
    slots: SlotTable,
    shapes: Shapes,
    lists: OpLists,
    low_dtype: int,
    members: Mapping[int, Sequence[int]],
) -> ProductErrors:
    """Grade every tensor of a graph, inputs first; what goes around a loop is FLOAT32.

    Args:
      view: the graph.
      slots: of `view`.
      shapes: static shapes by name of node.
      lists: for the low dtype; what is on the allow list is a product.
      low_dtype: DataType enum.
      members: number of a node that writes or reads a list of tensors to all nodes of
        that list.
    """
    kinds = [_kind(view, node, shapes, lists) for node in view.nodes]
    count = len(view.nodes)
    grades = [Grade.FLOAT32] * count
    chained = [0] * count
    errors = ProductErrors(view, slots, shapes, kinds, grades, chained)
    grading = _Grading(errors, low_dtype)
    # What is put on a list is known when all has been graded once.
    for _ in range(2 if members else 1):
        for i in view.order:
            grades[i], chained[i] = grading.of(view.nodes[i])
        grading.read_from(members)
    return errors


def _kind(view: GraphView, node: Node, shapes: Shapes, lists: OpLists) -> Errors | None:
    listed = lists.list_of(node.op)
    kind = ERRORS.get(node.op)
    # Whoever moves an op by hand has decided that it may be rounded.
    if listed == ALLOW or node.op in lists.freed:
        kind = Errors.PRODUCT
    if kind is Errors.PRODUCT:
        known = (known_shape(shapes, view, port) for port in node.inputs)
        if not has_sum(node.proto, tuple(known)):
            return Errors.SCALES
    return kind


class _Grading:
    """The grade of one node after another, from those of what it reads."""

    def __init__(self, errors: ProductErrors, low_dtype: int) -> None:
        self._errors = errors
        self._low_dtype = low_dtype
        self._read: dict[int, tuple[Grade, int]] = {}

    def read_from(self, members: Mapping[int, Sequence[int]]) -> None:
        """Note of each list the worst that is put on it, for those who read it."""
        errors = self._errors
        for node, others in members.items():
            ports = [p for i in others for _, p in errors.floats(errors.view.nodes[i])]
            grade = min(map(errors.grade, ports), default=Grade.FLOAT32)
            chained = max((errors.chained[port.node] for port in ports), default=0)
            self._read[node] = grade, chained

    def of(self, node: Node) -> tuple[Grade, int]:
        errors = self._errors
        kind = errors.kinds[node.index]
        if node.index in self._read:
            return self._read[node.index]
        if node.op == "Const":
            return self._constant(node), 0
        if node.op == "Cast":
            return self._cast(node), 0
        if kind is None:
            return Grade.FLOAT32, 0
        if kind is Errors.IGNORES:
            return Grade.EXACT, 0
        read = errors.floats(node)
        grades = [errors.grade(port) for _, port in read]
        chained = max((errors.chained[port.node] for _, port in read), default=0)
        match kind:
            case Errors.PRODUCT:
                return self._product(node, read)
            case Errors.MOVES:
                return self._moved(node, grades), chained
            case Errors.SCALES:
                return self._scaled(node, read, grades), chained
            case Errors.SUMS:
                return self._summed(node, read, grades, chained)
            case Errors.GRADIENT:
                gradient = GRADIENT_INPUTS[node.op][0]
                grade = errors.grade(node.inputs[gradient])
                return grade, errors.chained[node.inputs[gradient].node]
            case Errors.ACTIVATES:
                is_made = grades and min(grades) in (Grade.BIASED, Grade.PRODUCT)
                return Grade.ACTIVATED if is_made else Grade.FLOAT32, 0
            case Errors.AVERAGES:
                is_made = grades and min(grades) in MADE
                return Grade.ACTIVATED if is_made else Grade.FLOAT32, 0
            case Errors.NORMALIZES:
                is_made = grades and grades[0] in (Grade.BIASED, Grade.PRODUCT)
                return Grade.BIASED if is_made else Grade.FLOAT32, chained
        return Grade.FLOAT32, 0

    def _constant(self, node: Node) -> Grade:
        if node.proto.attr["dtype"].type != FLOAT32:
            return Grade.FLOAT32
        values = values_of(node.proto.attr["value"].tensor)
        with np.errstate(over="ignore"):
            rounded = values.astype(NUMPY_DTYPES[self._low_dtype]).astype(np.float32)
        is_exact = np.array_equal(values, rounded, equal_nan=True)
        return Grade.EXACT if is_exact else Grade.FLOAT32

    def _cast(self, node: Node) -> Grade:
        """Masks are exact, and what was in 16 bits is as inexact as a product."""
        source = self._errors.slots.input_dtype(node.index, 0)
        if source in (types_pb2.DT_BOOL, types_pb2.DT_UINT8):
            return Grade.EXACT
        return Grade.PRODUCT if source == self._low_dtype else Grade.FLOAT32

    def _product(self, node: Node, read: list[tuple[int, Port]]) -> tuple[Grade, int]:
        """Return the grade of a product with what is fused behind it."""
        grade, chained = Grade.PRODUCT, 0
        if "fused_ops" not in node.proto.attr:
            return grade, chained
        for name in node.proto.attr["fused_ops"].list.s:
            if name in _BROADCAST_PARTS:
                grade = min(grade, Grade.BIASED)
            elif name == b"Add":
                _, added = read[-1]
                chained = self._errors.chained[added.node] + 1
                is_long = chained > LONGEST_CHAIN
                grade = min(grade, Grade.FLOAT32 if is_long else self._added(added))
            elif name not in _LINEAR_PARTS:
                is_made = grade in (Grade.BIASED, Grade.PRODUCT)
                grade = Grade.ACTIVATED if is_made else Grade.FLOAT32
        return grade, chained

    def _added(self, port: Port) -> Grade:
        """Return what a product is at best that a tensor of its size is added to."""
        grade = self._errors.grade(port)
        return Grade.FLOAT32 if grade is Grade.ACTIVATED else grade

    def _moved(self, node: Node, grades: list[Grade]) -> Grade:
        if not grades or self._goes_around(node):
            return Grade.FLOAT32
        return min(grades)

    def _goes_around(self, node: Node) -> bool:
        nodes = self._errors.view.nodes
        return node.op in MERGE_OPS and any(
            nodes[port.node].op in NEXT_ITERATION_OPS for port in node.inputs
        )

    def _scaled(
        self, node: Node, read: list[tuple[int, Port]], grades: list[Grade]
    ) -> Grade:
        if Grade.PRODUCT in grades:
            return Grade.PRODUCT
        if not any(grade in MADE for grade in grades):
            return Grade.FLOAT32
        is_broadcast = self._errors.is_broadcast
        full = [
            grade
            for (position, _), grade in zip(read, grades, strict=True)
            if grade in MADE
            or (grade is Grade.FLOAT32 and not is_broadcast(node, position))
        ]
        # A gate of float32 values: as exact as they are wanted to be.
        return max(min(full), Grade.ACTIVATED)

    def _summed(
        self,
        node: Node,
        read: list[tuple[int, Port]],
        grades: list[Grade],
        chained: int,
    ) -> tuple[Grade, int]:
        is_broadcast = self._errors.is_broadcast
        own = [
            grade
            for (position, _), grade in zip(read, grades, strict=True)
            if not is_broadcast(node, position)
        ]
        if not own or min(own) not in (Grade.BIASED, Grade.PRODUCT):
            return Grade.FLOAT32, 0
        chained += len(own) - 1
        if chained > LONGEST_CHAIN:
            return Grade.FLOAT32, chained
        is_biased = len(own) < len(grades) or Grade.EXACT in own
        return Grade.BIASED if is_biased else min(own), chained
