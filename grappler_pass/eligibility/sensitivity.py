"""Where rounding a tensor to 16 bits would do harm.

The reference is the program whose products' operands are rounded by hand. A value that
carries a product's error (`Error.PRODUCT`) may be rounded wherever it goes. Any other
may where every way on leads into a product, which would round it anyway, and nothing on
the way makes more of the error than the product does:

  MatMul --> BiasAdd --> Tanh --> MatMul       all of it in 16 bits
  MatMul --> BiasAdd --> Sub(target)           the last product alone
  MatMul --> Sigmoid --> Log                   likewise: sigmoid may be near 1
  x --> Mul(1/255) --> MatMul                  the product alone; x is cast after Mul

So one walk goes back from what is read, by the errors that tensors carry.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorflow.core.framework import types_pb2

from grappler_pass.eligibility.carried_errors import OF_PRODUCTS, CarriedErrors, Error
from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.eligibility.reasons import Cause, Reason
from grappler_pass.eligibility.regions import spread
from grappler_pass.graph import op_table as table
from grappler_pass.graph.frames import is_unchanged
from grappler_pass.graph.op_table import Errors, Others
from grappler_pass.graph.op_traits import gradient_input
from grappler_pass.graph.type_slots import FLOATING, attr_of
from grappler_pass.graph.view import Node, Port
from grappler_pass.graph.walks import reached

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
        self._exposures = self._at_each(
            lambda node, position, port: self._exposure(
                node, position, errors.of(port).error
            )
        )
        self._exposed = self._reached_by(self._exposures, Exposure.PASSES)

    def harm(self, node: Node, slot: int) -> Reason | None:
        """Return the harm that a slot in 16 bits does; None if it does none."""
        error = self._errors.of_nodes[node.index].error
        kind = self._kinds[node.index]
        if kind is Errors.JUMPS:
            # What it makes of 16-bit numbers is none of the others, or a bool.
            return self._harm_of_operands(node, slot)
        if kind not in _FREE and error not in OF_PRODUCTS:
            return self._why_float32(node)
        if kind is Errors.SCALES and (port := Port(node.index, 0)) in self._cancelled:
            return self._cancelled[port]
        output_slot = self._errors.slots.output_slot
        for port in self._results(node, 0):
            governed = node.index in self._members or output_slot(*port) == slot
            if governed and port in self._exposed:
                return self._exposed[port]
        return self._harm_of_operands(node, slot)

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
        if not any(error in OF_PRODUCTS for error in errors):
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

        return spread(harmed(), sources)

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
        parts = spread(
            summands,
            lambda port: made_of(port, Errors.MOVES, Errors.SCALES, Errors.REDUCES),
        )
        summed_up = (
            (source, reason)
            for port, reason in parts.items()
            for source in made_of(port, Errors.REDUCES)
        )
        return spread(summed_up, lambda port: made_of(port, Errors.MOVES))

    def _is_repeated(self, node: Node) -> bool:
        """Return whether a loop computes with what this brings to each iteration.

        By hand its products round what is made of it, each time differently, so that
        a sum over the iterations loses less than by one rounding before the loop.
        """
        view = self._view
        is_constant = (
            node.op in table.ENTER_OPS and attr_of(node.proto, "is_constant").b
        )
        if not (is_constant or is_unchanged(view.nodes, node)):
            return False

        def passes_on(i: int) -> bool:
            return view.nodes[i].op in _WHOLE

        whole = reached([node.index], lambda i: filter(passes_on, view.read_by(i)))
        readers = (reader for i in whole for reader in view.read_by(i))
        return any(
            self._kinds[i] not in _NOT_COMPUTING for i in readers if not passes_on(i)
        )

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

    def _exposure(self, node: Node, position: int, error: Error) -> _Exposed:
        """Return the exposure of a rounding at an operand that carries an error."""
        kind = self._kinds[node.index]
        if error in (Error.PRODUCT, Error.EXACT) or kind is Errors.IGNORES:
            return Exposure.ABSORBED
        is_epilogue = position > 1 and "fused_ops" in node.proto.attr
        if kind is Errors.PRODUCT and not is_epilogue:
            return Exposure.ABSORBED
        if node.op == "Cast":
            target = node.proto.attr["DstT"].type
            if target == self._low_dtype:
                return Exposure.ABSORBED
            return Cause.AFTER_PRODUCTS if target in FLOATING else Cause.JUMP
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
                return Exposure.PASSES if is_bare and result in OF_PRODUCTS else None
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

    def _asks_sign(self, node: Node) -> bool:
        """Return whether a value is compared with zero, which rounding leaves alone."""
        if node.op not in _ORDERS or self._low_dtype != types_pb2.DT_BFLOAT16:
            # float16 makes zeros of small numbers.
            return False
        for port in node.inputs:
            proto = self._view.nodes[port.node].proto
            tensor = proto.attr["value"].tensor if proto.op == "Const" else None
            if tensor is None or proto.name in self._view.item.untouchable:
                is_zero = proto.op == "ZerosLike"
            else:
                is_zero = not any(tensor.float_val) and not any(tensor.tensor_content)
            if is_zero:
                return True
        return False
