"""Which slots may go to low precision, which must agree, and why.

Low precision starts at allow ops and floods through clear and infer ops, both ways over
float32 edges, as far as the rules leave room. A rule looks at the graph as given and
names the slots it refuses; `_RULES` is the whole of it. Costs are not looked at:
`coloring` chooses among what is eligible here.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.annotations import OWN
from grappler_pass.eligibility import known_wrong, regions
from grappler_pass.eligibility.carried_errors import CarriedErrors
from grappler_pass.eligibility.exclusions import excludes, local_names
from grappler_pass.eligibility.fused_ops import can_split, parts_of, products_alone
from grappler_pass.eligibility.reasons import Cause, Reason
from grappler_pass.eligibility.sensitivity import Sensitivity
from grappler_pass.eligibility.ties import TensorLists, ties_of
from grappler_pass.fork_safety import cached_attribute
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, CLEAR, DECOMPOSING_OPS, DENY, INFER
from grappler_pass.graph.op_traits import is_random, why_fixed
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
from grappler_pass.graph.view import Graph, Node

Refusals = Iterable[tuple[int, Reason]]
Rule = Callable[["RuleInput"], Refusals]


@dataclasses.dataclass(frozen=True, eq=False)
class RuleInput:
    """What every rule looks at.

    Attributes:
      low_name: "bfloat16" or "float16".
      excluded_by: node to what the user excluded it by, or empty.
      ranges: name of a node to how its tensors leave the safe range.
      uses_lists: whether the four lists count.
      sensitivity: what rounding harms; None where that does not count.
      escapes: slots of lists of tensors and of reserve spaces that escape, and why.
      edges: float32 edges between slots.
      fault_of: why the 16-bit kernel of a node may not be used; "" where it may.
    """

    view: Graph
    slots: SlotTable
    lists: OpLists
    low_name: str
    excluded_by: Callable[[NodeDef], str]
    ranges: Mapping[str, str]
    uses_lists: bool
    sensitivity: Sensitivity | None
    escapes: Mapping[int, Reason]
    edges: regions.SlotEdges
    fault_of: Callable[[SlotTable, Node], str]

    def node(self, slot: int) -> Node:
        """Return the node that a slot belongs to."""
        return self.view.nodes[self.slots.node_of[slot]]

    @property
    def low_dtype(self) -> int:
        """The low dtype as a DataType enum."""
        return int(DTYPE_ENUMS[self.low_name])

    @cached_attribute
    def nodes_with_slots(self) -> tuple[tuple[Node, tuple[int, ...]], ...]:
        """Each node that has float32 slots, with these."""
        dtypes, slots_of = self.slots.dtypes, self.slots.slots_of
        return tuple(
            (node, own)
            for node in self.view.nodes
            if (own := tuple([s for s in slots_of[node.index] if dtypes[s] == FLOAT32]))
        )


def _of_nodes(rule: Callable[[RuleInput, Node], Reason | None]) -> Rule:
    """Return the rule that refuses all slots of the nodes that a rule refuses."""

    def of_slots(case: RuleInput) -> Refusals:
        for node, own in case.nodes_with_slots:
            reason = rule(case, node)
            if reason is not None:
                yield from ((slot, reason) for slot in own)

    return of_slots


def _region(cause: Cause, region_of: Callable[[RuleInput], Mapping[int, int]]) -> Rule:
    """Refuse the nodes of a region, each because of the one that it begins at."""

    def refuse(case: RuleInput) -> Refusals:
        region = region_of(case)
        for node, own in case.nodes_with_slots:
            if node.index in region:
                reason = Reason(cause, case.view.nodes[region[node.index]].name)
                yield from ((slot, reason) for slot in own)

    return refuse


def _walk(cause: Cause, starts_of: Callable[[RuleInput], Mapping[int, int]]) -> Rule:
    """Refuse the slots that a walk reaches, each because of the one it begins at."""

    def refuse(case: RuleInput) -> Refusals:
        for slot, start in starts_of(case).items():
            yield slot, Reason(cause, case.node(start).name)

    return refuse


def _of_lists(rule: Rule) -> Rule:
    """Return the rule as it is where the four lists count, and else none."""
    return lambda case: rule(case) if case.uses_lists else ()


def _other_types(case: RuleInput) -> Refusals:
    """The user's own 16-bit nodes, and float64, keep their types.

    So does what says that it reads float32 and reads something else, whatever it makes.

    Before   MatMul --> Neg --> ArgMax --> Cast
    After    MatMul --> ArgMin --> Identity (T still float32) --> Cast

    is what TensorFlow's arithmetic optimizer does; the second runs like the first.
    """
    slots = case.slots
    for slot, dtype in enumerate(slots.dtypes):
        if dtype != FLOAT32:
            yield slot, Reason(Cause.NOT_FLOAT32, DTYPE_NAMES[dtype])
    for node, _ in case.nodes_with_slots:
        for position, port in enumerate(node.inputs):
            slot = slots.input_slot(node.index, position)
            if slot != NO_SLOT and slots.dtypes[slot] == FLOAT32:
                dtype = slots.output_dtype(*port)
                if dtype not in (FLOAT32, types_pb2.DT_INVALID):
                    yield slot, Reason(Cause.NOT_FLOAT32, f"reads {dtype_name(dtype)}")


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


@_of_nodes
def _fixed_and_listed(case: RuleInput, node: Node) -> Reason | None:
    """Ops whose types cannot change, and those that the lists keep in float32."""
    place = case.lists.place_of(node.proto)
    if is_random(node.op):
        return Reason(Cause.EXACT, "draws random numbers")
    if fixed := why_fixed(node.op, place.list_name not in (None, DENY)):
        return Reason(Cause.FIXED, fixed)
    if case.uses_lists and place.list_name is None:
        return Reason(Cause.NOT_LISTED, place.reason)
    if case.uses_lists and place.list_name == DENY:
        return Reason(Cause.DENY, place.reason)
    return None


def _missing_kernels(case: RuleInput) -> Refusals:
    """Slots for which no kernel runs at the low dtype on the node's device."""
    low_dtype, slots = case.low_dtype, case.slots.slots
    for node, own in case.nodes_with_slots:
        op, device = node.op, node.device_type
        where = f"{{}} in {case.low_name} on {device}"
        attrs = [slots[slot].attr for slot in own]
        admitted = {attr for attr in attrs if admits(op, attr, low_dtype)}
        # The attributes of a product change together, those of other ops alone.
        together = case.lists.list_of(op) == ALLOW
        reasons: dict[int, Reason] = {}
        for slot, attr in zip(own, attrs, strict=True):
            low = admitted if together else {attr}
            types = tuple((a, low_dtype if a in low else FLOAT32) for a in set(attrs))
            if attr not in admitted:
                detail = f"{op}.{attr} in {case.low_name}"
                reasons[slot] = Reason(Cause.NOT_ADMITTED, detail)
            elif not known_wrong.has_kernel(op, node.proto, types, device):
                reasons[slot] = Reason(Cause.NO_KERNEL, where.format(op))
            elif known_wrong.is_imprecise(op, device):
                reasons[slot] = Reason(Cause.IMPRECISE, where.format(op))
        alone = case.slots.has_float32_results(node.index)
        if not reasons and not alone:
            continue
        if can_split(node.proto, low_dtype, device, product_alone=alone):
            continue
        # All parts of a fused node may have kernels, of which one is not to be used.
        imprecise = (
            Reason(Cause.IMPRECISE, where.format(part.op))
            for part in parts_of(node.proto)
            if known_wrong.is_imprecise(part.op, device)
        )
        first = next(imprecise, None)
        neither = Reason(Cause.NO_KERNEL, f"{op} as its product alone")
        for slot in own if alone else reasons:
            yield slot, first or reasons.get(slot) or neither


@_of_nodes
def _bad_on_cpus(case: RuleInput, node: Node) -> Reason | None:
    """In float16 on a CPU, what no optimized kernel of oneDNN computes.

    And what TensorFlow fuses afterwards into what runs badly.
    """
    if case.low_name != "float16" or node.device_type != "CPU":
        return None
    if known_wrong.becomes_swish(case.view, node):
        return Reason(Cause.NO_KERNEL, "_MklSwish in float16 on CPU")
    if node.op == "BiasAdd" and case.view.nodes[node.inputs[0].node].op == "MatMul":
        return Reason(Cause.SLOW_KERNEL, "_FusedMatMul in float16 on CPU")
    if case.uses_lists and node.op in known_wrong.BY_REFERENCE:
        return Reason(Cause.SLOW_KERNEL, f"{node.op} in {case.low_name} on CPU")
    return None


def _beside_decompositions(case: RuleInput) -> Mapping[int, int]:
    """Products beside a matrix decomposition, which magnifies how they are rounded.

    A covariance rounded to 16 bits may have no Cholesky factor any more, and the
    entries of an inverse cancel in the next product.

      MatMul --> AddV2 --> Cholesky --> MatrixTriangularSolve --> Neg --> MatMul

    All of it stays float32, up to the first product both ways. What that reads may be
    rounded: the covariance of rounded vectors is a covariance.
    """
    of_nodes = (o for node, o in case.nodes_with_slots if node.op in DECOMPOSING_OPS)
    starts, edges = list(itertools.chain.from_iterable(of_nodes)), case.edges
    enters, numeric = edges.on(INFER, CLEAR, ALLOW), edges.on(INFER, CLEAR)
    results = regions.walk(starts, edges.readers, enters, numeric)
    return results | regions.walk(starts, edges.sources, enters, numeric)


@_of_nodes
def _measured_ranges(case: RuleInput, node: Node) -> Reason | None:
    """What makes or reads tensors that were seen to leave the safe range."""
    names = local_names(node.name) if case.ranges else ()
    why = next(filter(None, map(case.ranges.get, names)), None)
    return None if why is None else Reason(Cause.MEASURED_RANGE, why)


def _deny_taint(case: RuleInput) -> Mapping[int, int]:
    """Infer ops fed through clear and infer ops by a deny op."""
    edges = case.edges
    starts = sorted(edges.on(DENY))
    tainted = regions.walk(starts, edges.readers, edges.on(INFER, CLEAR))
    infer = edges.on(INFER)
    return {slot: start for slot, start in tainted.items() if slot in infer}


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


# The first rule that refuses a slot gives the reason.
_RULES: tuple[Rule, ...] = (
    _other_types,
    _held_by_caller,
    # What carries the mark of the gradients' unscaling, and all that follows.
    _region(Cause.BARRIER, lambda c: regions.behind_barriers(c.view)),
    # In float16, what is computed with a loss scale before the first product.
    _region(
        Cause.LOSS_SCALE,
        lambda c: (
            regions.behind_loss_scales(c.view, c.lists)
            if c.low_name == "float16"
            else {}
        ),
    ),
    # Updates of variables and the arithmetic that only feeds them.
    _region(Cause.STATE_UPDATE, lambda c: regions.state_update_region(c.view, c.lists)),
    _fixed_and_listed,
    _missing_kernels,
    _bad_on_cpus,
    # Whole numbers that end as integers, and random draws that are compared.
    _walk(Cause.EXACT, lambda c: regions.exact_slots(c.view, c.slots, c.edges)),
    # What computes with constants that the low dtype cannot hold.
    _of_lists(
        _walk(
            Cause.RANGE,
            lambda c: regions.out_of_range_slots(c.view, c.slots, c.edges, c.low_dtype),
        )
    ),
    _of_lists(_walk(Cause.DECOMPOSITION, _beside_decompositions)),
    _measured_ranges,
    _of_lists(_walk(Cause.DENY_TAINT, _deny_taint)),
    # Lists and reserve spaces that are read or made where no type can be changed.
    lambda case: case.escapes.items(),
    _harmful_roundings,
    # What a kernel of TensorFlow computes wrongly, as far as that is known.
    _of_nodes(
        lambda case, node: (
            Reason(Cause.WRONG_KERNEL, fault)
            if (fault := case.fault_of(case.slots, node))
            else None
        )
    ),
)


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

    @cached_attribute
    def variables(self) -> Mapping[int, int]:
        """Eligible slots as variables of a cut, from 0 on: tied ones are the same."""
        leader = {slot: group[0] for group in self.ties for slot in group}
        numbers: dict[int, int] = {}
        return {
            slot: numbers.setdefault(leader.get(slot, slot), len(numbers))
            for slot, is_eligible in enumerate(self.eligible)
            if is_eligible
        }

    @property
    def variable_count(self) -> int:
        """How many variables there are."""
        return 1 + max(self.variables.values(), default=-1)


def constrain(
    view: Graph,
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
    excluded_by = excludes(exclude, dict(view.item.excluded))
    alone = products_alone(view, low)
    if uses_lists:
        errors = CarriedErrors(
            view, slots, shapes, lists, low, of_lists.members, excluded_by
        )
        sensitivity = Sensitivity(errors)
        alone |= sensitivity.products_alone
    slots = slots.with_float32_results(alone)
    ties, escapes = ties_of(view, slots, lists, of_lists)
    edges = regions.SlotEdges.from_view(view, slots, lists, ties)
    case = RuleInput(
        view=view,
        slots=slots,
        lists=lists,
        low_name=low_dtype,
        excluded_by=excluded_by,
        ranges=dict(ranges),
        uses_lists=uses_lists,
        sensitivity=sensitivity,
        escapes=escapes,
        edges=edges,
        fault_of=fault_of,
    )
    refused: dict[int, Reason] = {}
    for rule in _RULES:
        for slot, reason in rule(case):
            refused.setdefault(slot, reason)
    _refuse_tied(case, ties, refused)
    numbers = range(len(slots.slots))
    if uses_lists:
        # What the flood from the allow ops does not reach stays float32, too.
        free = [slot for slot in numbers if slot not in refused]
        starts = edges.on(ALLOW).intersection(free)
        both_ways = list(map(operator.add, edges.readers, edges.sources))
        reached = regions.walk(starts, both_ways, frozenset(free))
        unreached = (slot for slot in free if slot not in reached)
        refused |= dict.fromkeys(unreached, Reason(Cause.NOT_REACHED))
        _refuse_tied(case, ties, refused)
    reasons = dict(refused)
    for slot in numbers:
        if slot not in refused:
            place = lists.place_of(case.node(slot).proto)
            detail = "It is on none of the four lists"
            if place.list_name is not None:
                detail = f"It is on the {place.list_name} list, since {place.reason}"
                if slots.has_float32_results(slots.node_of[slot]):
                    detail += ". What is fused after it stays float32"
            reasons[slot] = Reason(Cause.FORCED, detail)
    anchors = edges.on(ALLOW) if uses_lists else numbers
    return Constraints(
        slots=slots,
        eligible=tuple(slot not in refused for slot in numbers),
        reasons=tuple(reasons[slot] for slot in numbers),
        ties=tuple(group for group in ties if group[0] not in refused),
        allow=frozenset(anchors) - refused.keys(),
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
