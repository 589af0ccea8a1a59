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

from tensorflow.core.framework import types_pb2

from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.eligibility.numerics.product_errors import MADE, Grade, ProductErrors
from grappler_pass.eligibility.reasons import Cause, Reason
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_table import Errors, Others
from grappler_pass.graph.op_traits import gradient_input
from grappler_pass.graph.type_slots import FLOATING, attr_of
from grappler_pass.graph.view import Node, Port
from grappler_pass.graph.walks import reached

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
