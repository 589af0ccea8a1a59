"""How sure a predicted gain is, and what may be done on that.

A plan is used on prices alone if it saves a share of the step, and so much time that a
job may notice, errors of the prices subtracted. Where steps of the program can tell,
any other plan that may be worth it waits for them (`trying`).

What is off in one op's price is off in the same direction wherever the op is, so within
one op and source errors add up; between them they are independent and add in
quadrature. float32 and 16 bits of one op have a part of their error in common, which
makes the gain smaller or larger but does not change its sign; what steps have taught
of either has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from grappler_pass.costs.errors import COMMON_VARIANCE
from grappler_pass.graph.view import GraphView
from grappler_pass.planning.assignment import CastTerm
from grappler_pass.pricing.seconds import Prices

# Of the step: what is rounded in 16 bits for less, and called once or twice, is rounded
# for nothing.
DEFAULT_MARGIN = 0.05
# Nobody notices less, be it half of a step.
SURE_SECONDS = 20e-6
# The share of a step that steps must be able to find, as they are compared (2 %).
_WORTH = 0.02

# A gain that is so many times its error beyond so large a share of the step is certain
# if its prices are of this very device, calibrated or learned. Predicted gains are off
# by less than that (`python -m benchmarks.prediction`), and a step in float32 for
# comparison costs a short job more than it can win back.
_CERTAIN_ERRORS, CERTAIN_SHARE = 2.0, 0.1


class Gain(NamedTuple):
    """What a plan is predicted to save.

    Attributes:
      seconds: per step.
      error: standard deviation of these.
      step: seconds of the whole step in float32.
    """

    seconds: float
    error: float
    step: float

    def is_sure(self, margin: float) -> bool:
        """Return whether prices alone decide for it, given a share of the step."""
        return self._is_beyond(margin)

    @property
    def is_certain(self) -> bool:
        """Whether steps need not tell, if the prices are of this very device."""
        return self._is_beyond(CERTAIN_SHARE, errors=_CERTAIN_ERRORS)

    @property
    def may_be_worth_it(self) -> bool:
        """Whether steps may find that it pays."""
        return self.seconds > 0.0 and self.seconds + self.error >= _WORTH * self.step

    def _is_beyond(self, share: float, errors: float = 1.0) -> bool:
        least = max(share * self.step, SURE_SECONDS)
        return self.seconds - errors * self.error >= least


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
