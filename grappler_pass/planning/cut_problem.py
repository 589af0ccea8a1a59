"""From prices to the assignment problem, whose minimum cut is the plan.

Slots that must share a color become one variable of the cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from grappler_pass.eligibility.existing_casts import is_cast
from grappler_pass.eligibility.propagation import Constraints
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT
from grappler_pass.graph.view import Port
from grappler_pass.planning.assignment import FLOAT32_SIDE, CastTerm, Problem
from grappler_pass.planning.draft import Draft


@dataclasses.dataclass(frozen=True)
class Variables:
    """Slots as variables of the cut.

    Attributes:
      of_slot: slot number to variable, FLOAT32_SIDE where the slot is not eligible.
      count: number of variables.
    """

    of_slot: tuple[int, ...]
    count: int

    @classmethod
    def from_constraints(cls, constraints: Constraints) -> Variables:
        """Give each eligible slot a variable, tied ones the same."""
        leader: dict[int, int] = {}
        for group in constraints.ties:
            for slot in group:
                leader[slot] = group[0]
        numbers: dict[int, int] = {}
        of_slot = [
            numbers.setdefault(leader.get(slot, slot), len(numbers))
            if eligible
            else FLOAT32_SIDE
            for slot, eligible in enumerate(constraints.eligible)
        ]
        return cls(tuple(of_slot), len(numbers))

    def of(self, slot: int) -> int:
        """Return the variable that governs a slot, FLOAT32_SIDE for NO_SLOT."""
        return FLOAT32_SIDE if slot == NO_SLOT else self.of_slot[slot]

    def of_slots(self, slots: Iterable[int]) -> set[int]:
        """Return the variables that govern any of some slots."""
        return {self.of_slot[slot] for slot in slots} - {FLOAT32_SIDE}

    def spread(self, low: Sequence[bool]) -> tuple[bool, ...]:
        """Return the color of every slot from the color of every variable."""
        return tuple(v != FLOAT32_SIDE and low[v] for v in self.of_slot)


def problem_from_prices(
    draft: Draft, variables: Variables, tie: float = 0.0
) -> Problem:
    """State the assignment problem whose minimum cut is the plan of a priced draft.

    16 bits may be slower by a share of a node's float32 seconds, `tie`, if they halve
    what the node writes.
    """
    view, slots = draft.view, draft.slots
    float32 = [0.0] * variables.count
    low = [0.0] * variables.count
    for node, variable, float32_seconds, seconds in priced_nodes(draft, variables):
        writes_low = any(
            variables.of(slots.output_slot(*port)) >= 0
            for port in view.output_ports(node)
        )
        favor = tie if writes_low else 0.0
        float32[variable] += float32_seconds
        low[variable] += seconds - favor * float32_seconds
    return Problem(float32, low, _cast_terms(draft, variables))


def priced_nodes(
    draft: Draft, variables: Variables
) -> Iterator[tuple[int, int, float, float]]:
    """Yield each node that may be in 16 bits, its variable, its seconds in either type.

    A node is priced once: by the first of its slots that may be in 16 bits.
    """
    both = zip(draft.prices.float32, draft.prices.low, strict=True)
    for node, (float32, low) in enumerate(both):
        if low is not None:
            own = (variables.of_slot[slot] for slot in draft.slots.slots_of[node])
            yield node, next(v for v in own if v >= 0), float32, low


def _cast_terms(draft: Draft, variables: Variables) -> list[CastTerm]:
    prices, view, slots = draft.prices, draft.view, draft.slots
    readers_of: dict[Port, set[int]] = {}
    for port in dict.fromkeys((*prices.up, *prices.down)):
        if slots.output_dtype(*port) != FLOAT32:
            continue
        found = readers_of.setdefault(draft.reads.canonical.get(port, port), set())
        for reader in view.readers(port):
            node = view.nodes[reader.node]
            # A Cast may read a low tensor as well.
            if not is_cast(node) or node.name in view.item.untouchable:
                found.add(variables.of(slots.input_slot(*reader)))
    return [
        CastTerm(
            producer=variables.of(slots.output_slot(*port)),
            readers=frozenset(found),
            up_seconds=prices.up.get(port, 0.0),
            down_seconds=prices.down.get(port, 0.0),
            error=prices.cast_errors.get(port, 0.0),
        )
        for port, found in readers_of.items()
    ]
