"""How sure a predicted gain is.

What is off in one op's price is off in the same direction wherever the op is, so within
one op and source errors add up; between them they are independent and add in
quadrature. float32 and 16 bits of one op have a part of their error in common, which
makes the gain smaller or larger but does not change its sign; what steps have taught
of either has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from grappler_pass.costs.errors import COMMON_VARIANCE
from grappler_pass.graph.view import GraphView
from grappler_pass.planning.assignment import CastTerm
from grappler_pass.pricing.seconds import Prices


def gain_error(
    view: GraphView,
    prices: Prices,
    low_nodes: Iterable[int],
    casts: Iterable[tuple[float, CastTerm]],
) -> float:
    """Return the standard deviation of the gain, in seconds per step.

    `casts` are the seconds that are charged, each with the term that charges them.
    """
    float32: dict[tuple[str, str], float] = {}
    low: dict[tuple[str, str], float] = {}
    for node in low_nodes:
        group = view.nodes[node].op, prices.sources[node]
        error32, error16 = prices.errors[node]
        seconds = prices.low[node] or 0.0
        float32[group] = float32.get(group, 0.0) + error32 * prices.float32[node]
        low[group] = low.get(group, 0.0) + error16 * seconds
    nodes = (
        _variance(float32[group], low[group], is_learned=group[1] == "learned")
        for group in float32
    )
    cast = sum(seconds * term.error for seconds, term in casts)
    return math.sqrt(sum(nodes) + cast**2)


def _variance(float32: float, low: float, *, is_learned: bool) -> float:
    common = 0.0 if is_learned else COMMON_VARIANCE
    separate: float = (1.0 - common) * (float32**2 + low**2)
    return common * (float32 - low) ** 2 + separate
