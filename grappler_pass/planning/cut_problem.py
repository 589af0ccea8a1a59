"""From prices to the assignment problem, whose minimum cut is the plan.

Slots that must share a color become one variable of the cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grappler_pass.eligibility.existing_casts import is_cast
from grappler_pass.eligibility.propagation import Constraints
from grappler_pass.eligibility.variable_reads import VariableReads
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView, Node, Port
from grappler_pass.planning.assignment import FLOAT32_SIDE, CastTerm, Problem
from grappler_pass.pricing.seconds import Prices


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

    def spread(self, low: Sequence[bool]) -> tuple[bool, ...]:
        """Return the color of every slot from the color of every variable."""
        return tuple(v != FLOAT32_SIDE and low[v] for v in self.of_slot)


def problem_from_prices(
    view: GraphView,
    slots: SlotTable,
    variables: Variables,
    prices: Prices,
    reads: VariableReads,
    tie: float = 0.0,
) -> Problem:
    """State the assignment problem whose minimum cut is the plan.

    Args:
      view: the graph.
      slots: of `view`.
      variables: of `slots`.
      prices: of nodes and casts.
      reads: which variable reads share a cast.
      tie: share of a node's float32 seconds by which 16 bits may be slower if they
        halve what the node writes.
    """
    float32 = [0.0] * variables.count
    low = [0.0] * variables.count
    for node, variable in variables_of_nodes(slots, variables, prices).items():
        seconds = prices.low[node]
        assert seconds is not None, "a node that may go low has a price for it"
        favor = tie if tie and _writes_low(view, slots, variables, node) else 0.0
        float32[variable] += prices.float32[node]
        low[variable] += seconds - favor * prices.float32[node]
    return Problem(float32, low, _cast_terms(view, slots, variables, prices, reads))


def variables_of_nodes(
    slots: SlotTable, variables: Variables, prices: Prices
) -> dict[int, int]:
    """Return the variable of every node that may go low.

    A node is priced once: by the first of its slots that may go low.
    """
    return {
        node: next(v for s in slots.slots_of[node] if (v := variables.of_slot[s]) >= 0)
        for node, seconds in enumerate(prices.low)
        if seconds is not None
    }


def _writes_low(
    view: GraphView, slots: SlotTable, variables: Variables, node: int
) -> bool:
    ports = view.output_ports(node)
    return any(variables.of(slots.output_slot(*port)) >= 0 for port in ports)


def _cast_terms(
    view: GraphView,
    slots: SlotTable,
    variables: Variables,
    prices: Prices,
    reads: VariableReads,
) -> list[CastTerm]:
    readers_of: dict[Port, set[int]] = {}
    for port in dict.fromkeys((*prices.up, *prices.down)):
        if slots.output_dtype(*port) != FLOAT32:
            continue
        found = readers_of.setdefault(reads.canonical.get(port, port), set())
        for reader in view.readers(port):
            if not _reads_either(view, view.nodes[reader.node]):
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


def _reads_either(view: GraphView, node: Node) -> bool:
    """Return whether a node is a Cast that may read a low tensor as well."""
    return is_cast(node) and node.name not in view.item.untouchable
