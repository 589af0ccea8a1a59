"""One plan of a graph and the functions it calls, from a plan of each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from grappler_pass.planning.plan import Decision, Plan


@dataclasses.dataclass(frozen=True)
class PlanPart:
    """The plan of one run of a function, and how often it runs per step.

    Its name is put before those of its nodes; the outermost graph has none.
    """

    name: str
    weight: float
    plan: Plan


def merged(parts: Sequence[PlanPart]) -> Plan:
    """Return the plan of one step, with the rows of all parts in their order.

    What else a plan says is the first part's: the others are started with it.
    """
    call_seconds = parts[0].plan.call_seconds
    totals = {
        name: call_seconds
        + sum(
            part.weight * (getattr(part.plan, name) - part.plan.call_seconds)
            for part in parts
        )
        for name in ("seconds_before", "seconds_after")
    }
    largest = max((part.plan for part in parts), key=lambda p: p.peak_bytes_after)
    errors = (part.weight * part.plan.gain_error for part in parts)
    return dataclasses.replace(
        parts[0].plan,
        decisions=tuple(row for part in parts for row in _rows(part)),
        casts=sum(part.plan.casts for part in parts),
        casts_removed=sum(part.plan.casts_removed for part in parts),
        gain_error=math.hypot(*errors),
        guessed=next((p.plan.guessed for p in parts if p.plan.guessed), ""),
        peak_bytes_before=max(part.plan.peak_bytes_before for part in parts),
        peak_bytes_after=largest.peak_bytes_after,
        weight_bytes_after=largest.weight_bytes_after,
        **totals,
    )


def _rows(part: PlanPart) -> Iterable[Decision]:
    for row in part.plan.decisions:
        name = f"{part.name}/{row.slot.node}" if part.name else row.slot.node
        slot = dataclasses.replace(row.slot, node=name)
        yield dataclasses.replace(row.times(part.weight), slot=slot)
