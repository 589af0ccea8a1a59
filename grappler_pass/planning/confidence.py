"""How sure a predicted gain is, from the errors of the prices it is made of.

What is off in one op's price is off in the same direction wherever the op is, so within
one op and source errors add up; between them they are independent and add in
quadrature. What was measured errs for each probe alone. float32 and 16 bits of one op
have a part of their error in common, which makes the gain smaller or larger but does
not change its sign.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

from grappler_pass.costs.errors import COMMON_VARIANCE
from grappler_pass.graph.view import GraphView
from grappler_pass.planning.assignment import CastTerm
from grappler_pass.pricing.seconds import Prices


def ratio_error(float32: float, low: float, *, measured: bool) -> float:
    """Return the error of ln(low / float32) from those of the two prices."""
    separate = 1.0 if measured else 1.0 - COMMON_VARIANCE
    return math.sqrt(separate) * math.hypot(float32, low)


def gain_error(
    view: GraphView,
    prices: Prices,
    low_nodes: Iterable[int],
    casts: Iterable[tuple[float, CastTerm]],
) -> float:
    """Return the standard deviation of the gain, in seconds per step.

    `casts` are the seconds that are charged, each with the term that charges them.
    """
    float32: dict[Hashable, float] = {}
    low: dict[Hashable, float] = {}
    for node in low_nodes:
        group = _group(view, prices, node)
        error32, error16 = prices.errors[node]
        seconds = prices.low[node] or 0.0
        float32[group] = float32.get(group, 0.0) + error32 * prices.float32[node]
        low[group] = low.get(group, 0.0) + error16 * seconds
    nodes = (
        _variance(float32[group], low[group], measured=isinstance(group, str))
        for group in float32
    )
    cast = sum(seconds * term.error for seconds, term in casts)
    return math.sqrt(sum(nodes) + cast**2)


def is_measured(prices: Prices, node: int) -> bool:
    """Return whether both prices of a node come from measurements of itself."""
    return prices.sources[node] == "measured"


def _group(view: GraphView, prices: Prices, node: int) -> Hashable:
    probe = prices.probes[node]
    if probe is not None and is_measured(prices, node):
        return probe.key
    return view.nodes[node].op, prices.sources[node]


def _variance(float32: float, low: float, *, measured: bool) -> float:
    common = 0.0 if measured else COMMON_VARIANCE
    separate: float = (1.0 - common) * (float32**2 + low**2)
    return common * (float32 - low) ** 2 + separate
