"""Give bytes a price in seconds: what a step holds when it holds most costs.

A tensor that is written before that moment and read after it is held in the meantime.
Seconds and bytes are one sum, whose weight is a Lagrange multiplier: the minimum cut at
each weight takes the fewest seconds of all that hold no more. The weight is searched
for that holds the least within a share of seconds more.

    float32     four bytes of each element
    16 bits     two; who reads it late in float32 has a copy made then
    float32, and late readers in 16 bits: a copy of two more
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from grappler_pass.graph.type_slots import FLOAT32
from grappler_pass.planning.cut import FLOAT32_SIDE, CastTerm, Problem
from grappler_pass.planning.draft import Draft
from grappler_pass.planning.live_set import peak_of

# Of a step: so much longer it may take in all, to hold less.
SHARE = 0.05
# Each looks for the weight once more.
_CUTS = 5
_FACTOR = 4.0

T = TypeVar("T")


def bytes_problem(draft: Draft) -> Problem:
    """State what the types of a draft hold, as costs in bytes."""
    view, slots = draft.view, draft.slots
    variables, count = draft.constraints.variables, draft.constraints.variable_count
    float32, terms = [0.0] * count, list[CastTerm]()
    peak = peak_of(view, draft.shapes)
    late = frozenset(peak.late)
    for port, size in peak.held.items():
        if slots.output_dtype(*port) != FLOAT32:
            continue
        producer = variables.get(slots.output_slot(*port), FLOAT32_SIDE)
        if producer != FLOAT32_SIDE:
            float32[producer] += size / 2
        governing = frozenset(
            variables.get(slots.input_slot(*reader), FLOAT32_SIDE)
            for reader in view.readers(port)
            if reader.node in late
        )
        terms.append(CastTerm(producer, governing, 0.0, size / 2))
    return Problem(float32, [0.0] * count, terms)


def weighted(seconds: Problem, held: Problem, weight: float) -> Problem:
    """Return the sum of two problems, the second one times a weight."""
    both = zip(seconds.float32_seconds, held.float32_seconds, strict=True)
    low = zip(seconds.low_seconds, held.low_seconds, strict=True)
    return Problem(
        [a + weight * b for a, b in both],
        [a + weight * b for a, b in low],
        [
            *seconds.casts,
            *(
                term._replace(down_seconds=weight * term.down_seconds)
                for term in held.casts
            ),
        ],
    )


def lightest(
    at: Callable[[float], T], seconds: Callable[[T], float], most: float, weight: float
) -> T | None:
    """Return what holds the least and takes at most so many seconds.

    Args:
      at: returns what is best at a weight of bytes.
      seconds: returns what it takes.
      most: seconds that it may take.
      weight: the first one that is tried.

    Returns:
      None if all that was tried takes longer.
    """
    found, low, high = None, 0.0, 0.0
    for _ in range(_CUTS):
        tried = at(weight)
        if seconds(tried) <= most:
            found, low = tried, weight
        else:
            high = weight
        if low and high:
            weight = (low * high) ** 0.5
        else:
            weight *= 1.0 / _FACTOR if high else _FACTOR
    return found
