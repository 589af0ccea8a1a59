"""Which slots may go to low precision, which must agree, and why.

Low precision starts at allow ops and floods through clear and infer ops, both ways
over float32 edges, as far as `eligibility.RULES` leave room. Costs are not looked at:
`assignment` chooses among what is eligible here.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from grappler_pass.eligibility.exclusions import excludes, known_by
from grappler_pass.eligibility.numerics.product_errors import product_errors
from grappler_pass.eligibility.numerics.roundings import Roundings
from grappler_pass.eligibility.reachability import UNREACHED, spread
from grappler_pass.eligibility.reasons import Cause, Reason
from grappler_pass.eligibility.rules import RULES, Case
from grappler_pass.eligibility.slot_edges import SlotEdges
from grappler_pass.eligibility.ties import all_ties, list_members, list_ties
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.type_slots import DTYPE_ENUMS, SlotTable
from grappler_pass.graph.view import GraphView

# At this level neither lists nor errors count: whatever has a kernel may go low.
UNLISTED_LEVEL = "O3"


class Options(Protocol):
    """What of the settings bears on eligibility."""

    @property
    def opt_level(self) -> str:
        """One of "O0" to "O3"."""

    @property
    def exclude(self) -> tuple[str, ...]:
        """Regular expressions; nodes whose name one of them finds stay float32."""

    @property
    def ranges(self) -> tuple[tuple[str, str], ...]:
        """Names of nodes whose tensors leave the safe range, each with the reason."""


@dataclasses.dataclass(frozen=True)
class Constraints:
    """What an assignment has to keep to.

    Attributes:
      slots: of the graph; where a fused node can only have its product in 16 bits, its
        results and what is fused behind it belong to none.
      eligible: per slot, whether it may go low.
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
    options: Options,
) -> Constraints:
    """Return which slots of a graph may go low, and which must agree.

    Args:
      view: the graph.
      shapes: static shapes by name of node; operands of unknown ones count as of the
        size of the result.
      lists: for `low_dtype`.
      low_dtype: "bfloat16" or "float16".
      options: optimization level and excluded names. "O3" ignores the lists and what
        roundings harm; state updates, barriers, exact values and what the caller holds
        stay float32 there too.
    """
    low, uses_lists = DTYPE_ENUMS[low_dtype], options.opt_level != UNLISTED_LEVEL
    slots, roundings = SlotTable.from_view(view), None
    of_lists = list_ties(view, slots)
    excluded_by = excludes(options.exclude, dict(view.item.excluded))
    if uses_lists:
        members = list_members(of_lists, slots)
        errors = product_errors(view, slots, shapes, lists, low, members, excluded_by)
        roundings = Roundings(errors, low, members)
        slots = slots.with_float32_results(roundings.products_alone)
    ties, escapes = all_ties(view, slots, lists, of_lists)
    case = Case(
        view=view,
        slots=slots,
        lists=lists,
        low_dtype=low,
        excluded_by=excluded_by,
        unsafe_by=known_by(dict(options.ranges)),
        uses_lists=uses_lists,
        roundings=roundings,
        escapes=escapes,
        edges=SlotEdges.from_view(view, slots, lists, ties),
    )
    refused: dict[int, Reason] = {}
    for rule in RULES:
        for slot, reason in rule(case):
            refused.setdefault(slot, reason)
    _refuse_tied(case, ties, refused)
    if case.uses_lists:
        _refuse_unreached(case, refused)
        _refuse_tied(case, ties, refused)
    return _constraints(case, ties, refused)


def _refuse_tied(
    case: Case, ties: tuple[tuple[int, ...], ...], refused: dict[int, Reason]
) -> None:
    """Refuse whole groups of which a member is refused."""
    for group in ties:
        culprit = next((slot for slot in group if slot in refused), None)
        if culprit is not None:
            reason = Reason(Cause.TIED, str(case.slots.slots[culprit]))
            for slot in group:
                refused.setdefault(slot, reason)


def _refuse_unreached(case: Case, refused: dict[int, Reason]) -> None:
    """Refuse what the flood from the allow ops does not reach."""
    free = [slot not in refused for slot in range(len(case.slots.slots))]
    seeds = [s for s, ok in enumerate(free) if ok and case.edges.allow[s]]
    reached = spread(seeds, case.edges.both_ways, free)
    reason = Reason(Cause.NOT_REACHED)
    for slot, origin in enumerate(reached):
        if origin == UNREACHED:
            refused.setdefault(slot, reason)


def _constraints(
    case: Case, ties: tuple[tuple[int, ...], ...], refused: dict[int, Reason]
) -> Constraints:
    slots = range(len(case.slots.slots))
    reasons = (refused.get(slot) or _eligible_reason(case, slot) for slot in slots)
    anchors = case.edges.allow if case.uses_lists else [True] * len(slots)
    return Constraints(
        slots=case.slots,
        eligible=tuple(slot not in refused for slot in slots),
        reasons=tuple(reasons),
        ties=tuple(group for group in ties if group[0] not in refused),
        allow=frozenset(s for s in slots if anchors[s] and s not in refused),
    )


def _eligible_reason(case: Case, slot: int) -> Reason:
    place = case.lists.place_of(case.node(slot).proto)
    if place.list_name is None:
        return Reason(Cause.FORCED, "in no list")
    detail = f"{place.list_name}: {place.reason}"
    if case.slots.has_float32_results(case.slots.node_of[slot]):
        detail += "; what is fused behind it stays float32"
    return Reason(Cause.FORCED, detail)
