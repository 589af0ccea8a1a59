"""Which slots may go to low precision, which must agree, and why.

Low precision starts at allow ops and floods through clear and infer ops, both ways
over float32 edges, as far as `rules` leave room. Costs are not looked at:
`assignment` chooses among what is eligible here.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence

from grappler_pass.eligibility.exclusions import excludes
from grappler_pass.eligibility.fused_ops import products_alone
from grappler_pass.eligibility.reasons import Cause, Reason
from grappler_pass.eligibility.regions import UNREACHED, SlotEdges, spread
from grappler_pass.eligibility.rules import RuleInput, refusals
from grappler_pass.eligibility.sensitivity import CarriedErrors, Sensitivity
from grappler_pass.eligibility.ties import TensorLists, ties_of
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.type_slots import DTYPE_ENUMS, SlotTable
from grappler_pass.graph.view import GraphView, Node


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
