"""Which slots may go to low precision, which must agree, and why.

Low precision starts at allow ops and floods through clear and infer ops, both ways over
float32 edges, as far as the rules leave room. A rule looks at the graph as given and
names the slots it refuses; `_RULES` is the whole of it. Costs are not looked at:
`assignment` chooses among what is eligible here.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.annotations import OWN
from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.eligibility import known_wrong, regions
from grappler_pass.eligibility.carried_errors import CarriedErrors
from grappler_pass.eligibility.exactness import exact_slots, out_of_range_slots
from grappler_pass.eligibility.exclusions import excludes, local_names
from grappler_pass.eligibility.fused_ops import can_split, parts_of, products_alone
from grappler_pass.eligibility.reasons import Cause, Reason
from grappler_pass.eligibility.regions import (
    UNREACHED,
    SlotEdges,
    first_of,
    spread,
)
from grappler_pass.eligibility.sensitivity import Sensitivity
from grappler_pass.eligibility.ties import TensorLists, ties_of
from grappler_pass.graph.op_lists import Listing, OpLists
from grappler_pass.graph.op_table import ALLOW, CLEAR, DECOMPOSING_OPS, DENY, INFER
from grappler_pass.graph.op_traits import is_random, is_update, why_fixed
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.type_slots import (
    DTYPE_ENUMS,
    DTYPE_NAMES,
    FLOAT32,
    NO_SLOT,
    SlotTable,
    admits,
    dtype_name,
)
from grappler_pass.graph.view import GraphView, Node

Refusals = Iterator[tuple[int, Reason]]
Rule = Callable[["RuleInput"], Refusals]


@dataclasses.dataclass(frozen=True, eq=False)
class RuleInput:
    """What every rule looks at.

    Attributes:
      excluded_by: node to what the user excluded it by, or empty.
      ranges: name of a node to how its tensors leave the safe range.
      uses_lists: whether the four lists count.
      sensitivity: what rounding harms; None where that does not count.
      escapes: slots of lists of tensors and of reserve spaces that escape, and why.
      edges: float32 edges between slots.
      fault_of: why the 16-bit kernel of a node may not be used; "" where it may.
    """

    view: GraphView
    slots: SlotTable
    lists: OpLists
    low_dtype: int
    excluded_by: Callable[[NodeDef], str]
    ranges: Mapping[str, str]
    uses_lists: bool
    sensitivity: Sensitivity | None
    escapes: Mapping[int, Reason]
    edges: SlotEdges
    fault_of: Callable[[SlotTable, Node], str]

    def node(self, slot: int) -> Node:
        """Return the node that a slot belongs to."""
        return self.view.nodes[self.slots.node_of[slot]]

    @cached_attribute
    def nodes_with_slots(self) -> tuple[tuple[Node, tuple[int, ...]], ...]:
        """Each node that has float32 slots, with these."""
        dtypes, slots_of = self.slots.dtypes, self.slots.slots_of
        return tuple(
            (node, own)
            for node in self.view.nodes
            if (own := tuple([s for s in slots_of[node.index] if dtypes[s] == FLOAT32]))
        )


def _other_types(case: RuleInput) -> Refusals:
    """The user's own 16-bit nodes, and float64, keep their types."""
    for slot, dtype in enumerate(case.slots.dtypes):
        if dtype != FLOAT32:
            yield slot, Reason(Cause.NOT_FLOAT32, DTYPE_NAMES[dtype])


def _untrue_types(case: RuleInput) -> Refusals:
    """What says that it reads float32 and reads something else, whatever it makes.

    Before   MatMul --> Neg --> ArgMax --> Cast
    After    MatMul --> ArgMin --> Identity (T still float32) --> Cast

    is what TensorFlow's arithmetic optimizer does; the second runs like the first.
    """
    slots = case.slots
    for node, _ in case.nodes_with_slots:
        for position, port in enumerate(node.inputs):
            slot = slots.input_slot(node.index, position)
            if slot != NO_SLOT and slots.dtypes[slot] == FLOAT32:
                given = slots.output_dtype(*port)
                if given not in (FLOAT32, types_pb2.DT_INVALID):
                    yield slot, Reason(Cause.NOT_FLOAT32, f"reads {dtype_name(given)}")


def _of_nodes(rule: Callable[[RuleInput, Node], Reason | None]) -> Rule:
    """Return the rule that refuses all slots of the nodes that a rule refuses."""

    @functools.wraps(rule)
    def of_slots(case: RuleInput) -> Refusals:
        for node, own in case.nodes_with_slots:
            reason = rule(case, node)
            if reason is not None:
                yield from ((slot, reason) for slot in own)

    return of_slots


@_of_nodes
def _held_by_caller(case: RuleInput, node: Node) -> Reason | None:
    """What is fetched, fed, preserved or excluded, and casts, which stay as written."""
    if node.op == "Cast":
        return Reason(Cause.CAST)
    if node.name in case.view.item.untouchable:
        return Reason(Cause.PRESERVED)
    if why := case.excluded_by(node.proto):
        cause = Cause.OWN if why.startswith(OWN) else Cause.EXCLUDED
        return Reason(cause, why.removeprefix(OWN))
    return None


def _behind_barriers(case: RuleInput) -> Refusals:
    """What carries the mark of the gradients' unscaling, and all that follows."""
    return _by_region(case, regions.behind_barriers(case.view), Cause.BARRIER)


def _behind_loss_scales(case: RuleInput) -> Refusals:
    """In float16, what is computed with a loss scale before the first product."""
    if case.low_dtype != DTYPE_ENUMS["float16"]:
        return iter(())
    region = regions.behind_loss_scales(case.view, case.lists)
    return _by_region(case, region, Cause.LOSS_SCALE)


def _state_updates(case: RuleInput) -> Refusals:
    """Updates of variables and the arithmetic that only feeds them."""
    region = regions.state_update_region(case.view, case.lists)
    for node in case.view.nodes:
        if is_update(node.op):
            region[node.index] = node.index
    return _by_region(case, region, Cause.STATE_UPDATE)


def _by_region(case: RuleInput, region: list[int], cause: Cause) -> Refusals:
    for node, own in case.nodes_with_slots:
        start = region[node.index]
        if start != UNREACHED:
            reason = Reason(cause, case.view.nodes[start].name)
            yield from ((slot, reason) for slot in own)


@_of_nodes
def _fixed_and_listed(case: RuleInput, node: Node) -> Reason | None:
    """Ops whose types cannot change, and those that the lists keep in float32."""
    return _op_reason(case.uses_lists, node.op, case.lists.place_of(node.proto))


@functools.lru_cache(maxsize=4096)
def _op_reason(uses_lists: bool, op: str, place: Listing) -> Reason | None:
    fixed = why_fixed(op, place.list_name not in (None, DENY))
    if is_random(op):
        return Reason(Cause.EXACT, "draws random numbers")
    if fixed:
        return Reason(Cause.FIXED, fixed)
    if uses_lists and place.list_name is None:
        return Reason(Cause.NOT_LISTED, place.reason)
    if uses_lists and place.list_name == DENY:
        return Reason(Cause.DENY, place.reason)
    return None


def _missing_kernels(case: RuleInput) -> Refusals:
    """Slots for which no kernel runs at the low dtype on the node's device."""
    known: dict[object, tuple[Reason | None, ...]] = {}
    slots = case.slots.slots
    for node, own in case.nodes_with_slots:
        attrs = tuple([slots[slot].attr for slot in own])
        half_raises = known_wrong.refuses_half(node.op, node.proto)
        key = (node.op, node.device_type, attrs, half_raises)
        if key not in known:
            known[key] = tuple(_kernel_reasons(case, node, attrs))
        reasons = known[key]
        alone = case.slots.has_float32_results(node.index)
        if not any(reasons) and not alone:
            continue
        low_dtype, device = case.low_dtype, node.device_type
        if can_split(node.proto, low_dtype, device, product_alone=alone):
            continue
        part = _imprecise_part(case, node)
        none = Reason(Cause.NO_KERNEL, f"{node.op} as its product alone")
        yield from (
            (s, part or r or none)
            for s, r in zip(own, reasons, strict=True)
            if r or alone
        )


def _imprecise_part(case: RuleInput, node: Node) -> Reason | None:
    """Return why a fused node is not split whose parts all have kernels, if so."""
    device = node.device_type
    for part in parts_of(node.proto):
        if known_wrong.is_imprecise(part.op, device):
            detail = f"{part.op} in {DTYPE_NAMES[case.low_dtype]} on {device}"
            return Reason(Cause.IMPRECISE, detail)
    return None


def _kernel_reasons(
    case: RuleInput, node: Node, attrs: tuple[str, ...]
) -> Iterator[Reason | None]:
    """Yield what keeps each float32 attribute of a node from the low dtype."""
    device = node.device_type
    low_name = DTYPE_NAMES[case.low_dtype]
    admitted = [attr for attr in attrs if admits(node.op, attr, case.low_dtype)]
    # The attributes of a product change together, those of other ops alone.
    together = case.lists.list_of(node.op) == ALLOW
    for attr in attrs:
        low = set(admitted) if together else {attr}
        types = tuple(
            (name, case.low_dtype if name in low else FLOAT32) for name in set(attrs)
        )
        if attr not in admitted:
            yield Reason(Cause.NOT_ADMITTED, f"{node.op}.{attr} in {low_name}")
        elif not known_wrong.has_kernel(node.op, node.proto, types, device):
            yield Reason(Cause.NO_KERNEL, f"{node.op} in {low_name} on {device}")
        elif known_wrong.is_imprecise(node.op, device):
            yield Reason(Cause.IMPRECISE, f"{node.op} in {low_name} on {device}")
        else:
            yield None


@_of_nodes
def _fused_afterwards(case: RuleInput, node: Node) -> Reason | None:
    """In float16 on a CPU, what TensorFlow fuses afterwards into what runs badly."""
    if case.low_dtype != DTYPE_ENUMS["float16"] or node.device_type != "CPU":
        return None
    if known_wrong.becomes_swish(case.view, node):
        return Reason(Cause.NO_KERNEL, "_MklSwish in float16 on CPU")
    if known_wrong.becomes_biased_product(case.view, node):
        return Reason(Cause.SLOW_KERNEL, "_FusedMatMul in float16 on CPU")
    return None


@_of_nodes
def _slow_kernels(case: RuleInput, node: Node) -> Reason | None:
    """What no optimized kernel of oneDNN computes."""
    if not known_wrong.is_by_reference(node.op, case.low_dtype, node.device_type):
        return None
    low_name = DTYPE_NAMES[case.low_dtype]
    return Reason(Cause.SLOW_KERNEL, f"{node.op} in {low_name} on CPU")


def _exact_values(case: RuleInput) -> Refusals:
    """Whole numbers that end as integers, and random draws that are compared."""
    starts = exact_slots(case.view, case.slots, case.edges)
    return _by_start(case, starts, Cause.EXACT)


def _out_of_range(case: RuleInput) -> Refusals:
    """What computes with constants that the low dtype cannot hold."""
    starts = out_of_range_slots(case.view, case.slots, case.edges, case.low_dtype)
    return _by_start(case, starts, Cause.RANGE)


def _beside_decompositions(case: RuleInput) -> Refusals:
    """Products beside a matrix decomposition, which magnifies how they are rounded.

    A covariance rounded to 16 bits may have no Cholesky factor any more, and the
    entries of an inverse cancel in the next product.

      MatMul --> AddV2 --> Cholesky --> MatrixTriangularSolve --> Neg --> MatMul

    All of it stays float32, up to the first product both ways. What that reads may be
    rounded: the covariance of rounded vectors is a covariance.
    """
    starts = [
        slot
        for node, own in case.nodes_with_slots
        if node.op in DECOMPOSING_OPS
        for slot in own
    ]
    edges = case.edges
    enters, numeric = edges.on(INFER, CLEAR, ALLOW), edges.on(INFER, CLEAR)
    operands = spread(starts, edges.sources, enters, numeric)
    results = spread(starts, edges.readers, enters, numeric)
    return _by_start(case, first_of(operands, results), Cause.DECOMPOSITION)


@_of_nodes
def _measured_ranges(case: RuleInput, node: Node) -> Reason | None:
    """What makes or reads tensors that were seen to leave the safe range."""
    names = local_names(node.name) if case.ranges else ()
    why = next(filter(None, map(case.ranges.get, names)), None)
    return None if why is None else Reason(Cause.MEASURED_RANGE, why)


def _deny_taint(case: RuleInput) -> Refusals:
    """Infer ops fed through clear and infer ops by a deny op."""
    edges = case.edges
    starts = [slot for slot, name in enumerate(edges.lists) if name == DENY]
    reached_from = spread(starts, edges.readers, edges.on(INFER, CLEAR))
    infer_only = [
        start if name == INFER else UNREACHED
        for start, name in zip(reached_from, edges.lists, strict=True)
    ]
    return _by_start(case, infer_only, Cause.DENY_TAINT)


def _by_start(case: RuleInput, starts: list[int], cause: Cause) -> Refusals:
    for slot, start in enumerate(starts):
        if start != UNREACHED:
            yield slot, Reason(cause, case.node(start).name)


def _harmful_roundings(case: RuleInput) -> Refusals:
    """What would be less exact in 16 bits than with products' operands cast by hand."""
    if case.sensitivity is None:
        return
    freed = case.lists.freed
    for node, own in case.nodes_with_slots:
        if freed and case.lists.place_of(node.proto).op in freed:
            continue
        # The types of what is fused behind a product that is alone in 16 bits.
        alone = case.slots.has_float32_results(node.index)
        for slot in own[1:] if alone else own:
            harm = case.sensitivity.harm(node, slot)
            if harm is not None:
                yield slot, harm


def _escaping(case: RuleInput) -> Refusals:
    """Lists and reserve spaces that are read or made where no type can be changed."""
    yield from case.escapes.items()


@_of_nodes
def _wrong_kernels(case: RuleInput, node: Node) -> Reason | None:
    """What a kernel of TensorFlow computes wrongly, as far as that is known."""
    fault = case.fault_of(case.slots, node)
    return Reason(Cause.WRONG_KERNEL, fault) if fault else None


# The first rule that refuses a slot gives the reason.
_RULES: tuple[Rule, ...] = (
    _other_types,
    _untrue_types,
    _held_by_caller,
    _behind_barriers,
    _behind_loss_scales,
    _state_updates,
    _fixed_and_listed,
    _missing_kernels,
    _fused_afterwards,
    _slow_kernels,
    _exact_values,
    _out_of_range,
    _beside_decompositions,
    _measured_ranges,
    _deny_taint,
    _escaping,
    _harmful_roundings,
    _wrong_kernels,
)
# They count where lists do.
_OF_LISTS = (_slow_kernels, _out_of_range, _beside_decompositions, _deny_taint)


def refusals(case: RuleInput) -> dict[int, Reason]:
    """Return the slots that any rule refuses, and why."""
    refused: dict[int, Reason] = {}
    for rule in _RULES:
        if case.uses_lists or rule not in _OF_LISTS:
            for slot, reason in rule(case):
                refused.setdefault(slot, reason)
    return refused


@dataclasses.dataclass(frozen=True)
class Constraints:
    """What an assignment has to keep to.

    Attributes:
      slots: of the graph; where a fused node can only have its product in 16 bits, its
        results and what is fused behind it belong to none.
      eligible: per slot, whether it may be in 16 bits.
      reasons: per slot, why (not).
      ties: groups of eligible slots that must have the same color.
      allow: eligible slots that a low region needs one of, or it is an island: those
        of allow ops, and where lists do not count, all.
    """

    slots: SlotTable = dataclasses.field(compare=False)
    eligible: tuple[bool, ...]
    reasons: tuple[Reason, ...]
    ties: tuple[tuple[int, ...], ...]
    allow: frozenset[int]


def constrain(
    view: GraphView,
    shapes: Shapes,
    lists: OpLists,
    low_dtype: str,
    *,
    uses_lists: bool = True,
    exclude: Sequence[str] = (),
    ranges: Sequence[tuple[str, str]] = (),
    fault_of: Callable[[SlotTable, Node], str] = lambda slots, node: "",
) -> Constraints:
    """Return which slots of a graph may be in 16 bits, and which must agree.

    Args:
      view: the graph.
      shapes: static shapes by name of node; operands of unknown ones count as of the
        size of the result.
      lists: for `low_dtype`.
      low_dtype: "bfloat16" or "float16".
      uses_lists: False: neither the lists count nor what roundings harm. State updates,
        barriers, exact values and what the caller holds stay float32 there too.
      exclude: regular expressions; nodes whose name one of them finds stay float32.
      ranges: names of nodes whose tensors leave the safe range, each with the reason.
      fault_of: returns why the 16-bit kernel of a node may not be used, if so.
    """
    low = DTYPE_ENUMS[low_dtype]
    slots, sensitivity = SlotTable.from_view(view), None
    of_lists = TensorLists.from_view(view, slots)
    members = of_lists.members(slots)
    excluded_by = excludes(exclude, dict(view.item.excluded))
    alone = products_alone(view, low)
    if uses_lists:
        errors = CarriedErrors(view, slots, shapes, lists, low, members, excluded_by)
        sensitivity = Sensitivity(errors)
        alone |= sensitivity.products_alone
    slots = slots.with_float32_results(alone)
    ties, escapes = ties_of(view, slots, lists, of_lists, members)
    case = RuleInput(
        view=view,
        slots=slots,
        lists=lists,
        low_dtype=low,
        excluded_by=excluded_by,
        ranges=dict(ranges),
        uses_lists=uses_lists,
        sensitivity=sensitivity,
        escapes=escapes,
        edges=SlotEdges.from_view(view, slots, lists, ties),
        fault_of=fault_of,
    )
    refused = refusals(case)
    _refuse_tied(case, ties, refused)
    if uses_lists:
        _refuse_unreached(case, refused)
        _refuse_tied(case, ties, refused)
    numbers = range(len(slots.slots))
    anchors = case.edges.on(ALLOW) if uses_lists else [True] * len(numbers)
    return Constraints(
        slots=slots,
        eligible=tuple(slot not in refused for slot in numbers),
        reasons=tuple(refused.get(s) or _eligible_reason(case, s) for s in numbers),
        ties=tuple(group for group in ties if group[0] not in refused),
        allow=frozenset(s for s in numbers if anchors[s] and s not in refused),
    )


def _refuse_tied(
    case: RuleInput, ties: tuple[tuple[int, ...], ...], refused: dict[int, Reason]
) -> None:
    """Refuse whole groups of which a member is refused."""
    for group in ties:
        culprit = next((slot for slot in group if slot in refused), None)
        if culprit is not None:
            reason = Reason(Cause.TIED, str(case.slots.slots[culprit]))
            for slot in group:
                refused.setdefault(slot, reason)


def _refuse_unreached(case: RuleInput, refused: dict[int, Reason]) -> None:
    """Refuse what the flood from the allow ops does not reach."""
    edges = case.edges
    free = [slot not in refused for slot in range(len(edges.lists))]
    starts = [s for s, ok in enumerate(free) if ok and edges.lists[s] == ALLOW]
    both_ways = list(map(operator.add, edges.readers, edges.sources))
    for slot, start in enumerate(spread(starts, both_ways, free)):
        if start == UNREACHED:
            refused.setdefault(slot, Reason(Cause.NOT_REACHED))


def _eligible_reason(case: RuleInput, slot: int) -> Reason:
    place = case.lists.place_of(case.node(slot).proto)
    if place.list_name is None:
        return Reason(Cause.FORCED, "in no list")
    detail = f"{place.list_name}: {place.reason}"
    if case.slots.has_float32_results(case.slots.node_of[slot]):
        detail += "; what is fused behind it stays float32"
    return Reason(Cause.FORCED, detail)
