"""How sure a predicted gain is, and which prices are worth measuring.

What is off in one op's price is off in the same direction wherever the op is, so within
one op and source errors add up; between them they are independent and add in
quadrature. What was measured errs for each probe alone. float32 and 16 bits of one op
have a part of their error in common, which makes the gain smaller or larger but does
not change its sign.

Worth measuring is what could flip the plan, and levels. The cut is solved with every
16-bit price as low as its error allows, and as high. Low sides of cuts are nested: what
is low even when 16 bits are dear stays so at any prices in between, as does what is
float32 even when they are cheap. The rest is at stake. If it is open whether the plan
gains enough to be applied at all, all of it is. What is left of it once the dearest are
measured is not asked for where it is next to nothing.

Where a plan is possible but hangs on no price, its seconds are still printed, and are
as wrong as the profile is for this machine. So of each op that none was measured of,
the call that takes longest comes last: it sets the level of the others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from grappler_pass.costs.calls import TensorSpec
from grappler_pass.costs.database.probes import Probe, cast_probe
from grappler_pass.costs.errors import COMMON_VARIANCE, SURE
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.view import GraphView, Node
from grappler_pass.planning.assignment import (
    FLOAT32_SIDE,
    CastTerm,
    Problem,
    minimum_cut,
)
from grappler_pass.planning.cut_problem import (
    Variables,
    priced_nodes,
    problem_from_prices,
)
from grappler_pass.planning.draft import Draft, Stake
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


# Of a step, what all prices together that are not measured may be worth.
NEGLIGIBLE = 0.005


class Bounds(NamedTuple):
    """What the assignment is at the two ends of what the prices allow.

    Attributes:
      cheap: per variable, whether it is low with 16 bits at their cheapest.
      dear: the same with 16 bits at their dearest; implies `cheap`.
      least_gain: of `dear`, at the dearest prices, in seconds per step.
      most_gain: of `cheap`, at the cheapest.
    """

    cheap: tuple[bool, ...]
    dear: tuple[bool, ...]
    least_gain: float
    most_gain: float

    def at_stake(self, threshold: float) -> frozenset[int]:
        """Return the variables that are open when a plan must gain `threshold`."""
        if self.most_gain <= threshold:
            return frozenset()
        is_sure = self.least_gain > threshold
        ends = enumerate(zip(self.cheap, self.dear, strict=True))
        return frozenset(v for v, (low, dear) in ends if low and not (is_sure and dear))


def bounds_of(problem_at: Callable[[float], Problem]) -> Bounds:
    """Solve at the cheapest and at the dearest 16-bit prices.

    Args:
      problem_at: states the problem with every 16-bit price off by so many errors.
    """
    ends = []
    for errors in (-1.0, 1.0):
        problem = problem_at(errors)
        low = minimum_cut(problem)
        gain = problem.seconds([False] * len(low)) - problem.seconds(low)
        ends.append((low, gain))
    (cheap, most_gain), (dear, least_gain) = ends
    return Bounds(cheap, dear, least_gain, most_gain)


def stakes(draft: Draft) -> tuple[Stake, ...]:
    """Return what is worth measuring before a priced draft is assigned.

    One stake per probe and type of device, over all nodes that it stands for: first
    what could flip the plan, then levels, each with the most seconds first. The last of
    either are left out that together stand for less than a share of the step.
    """
    variables = Variables.from_constraints(draft.constraints)
    bounds = bounds_of(
        lambda errors: problem_from_prices(
            dataclasses.replace(draft, prices=_moved(draft.prices, errors)),
            variables,
            draft.settings.tie,
        )
    )
    step = sum(draft.prices.float32)
    threshold = draft.settings.margin * step
    if bounds.most_gain <= threshold:
        return ()
    open_ones = bounds.at_stake(threshold)
    negligible = NEGLIGIBLE * step
    found = [
        *_node_stakes(draft, variables, open_ones),
        *_cast_stakes(draft, variables, open_ones, bounds),
    ]
    flips = without_rest(_summed(found), negligible)
    asked = {stake.probe.op for stake in flips}
    levels = (level for level in _level_stakes(draft) if level.probe.op not in asked)
    return (*flips, *without_rest(_summed(levels), negligible))


def _summed(found: Iterable[Stake]) -> list[Stake]:
    """Return one stake for those of one probe and type of device, in order."""
    sums: dict[tuple[str, str], Stake] = {}
    for stake in found:
        key = (stake.probe.key, stake.device_type)
        known = sums.get(key)
        total = stake.seconds + (known.seconds if known else 0.0)
        sums[key] = (known or stake)._replace(seconds=total)
    in_order = sorted(sums, key=lambda key: (-sums[key].seconds, key))
    return [sums[key] for key in in_order]


def without_rest(in_order: Sequence[Stake], negligible: float) -> tuple[Stake, ...]:
    """Return the stakes without as many of the last as are worth no more than that."""
    left = itertools.accumulate(stake.seconds for stake in reversed(in_order))
    rest = sum(seconds <= negligible for seconds in left)
    return tuple(in_order[: len(in_order) - rest])


def _moved(prices: Prices, errors: float) -> Prices:
    """Return the prices with those in 16 bits so many errors off against float32."""
    low = list(prices.low)
    for node, seconds in enumerate(prices.low):
        if seconds is not None:
            measured = is_measured(prices, node)
            off = errors * ratio_error(*prices.errors[node], measured=measured)
            low[node] = seconds * math.exp(off)
    return dataclasses.replace(prices, low=tuple(low))


def _node_stakes(
    draft: Draft, variables: Variables, open_ones: frozenset[int]
) -> Iterator[Stake]:
    prices = draft.prices
    for node, variable, float32, low in priced_nodes(draft, variables):
        probe = prices.probes[node]
        if variable not in open_ones or probe is None:
            continue
        error, low_error = prices.errors[node]
        if is_measured(prices, node) and max(error, low_error) < SURE:
            continue
        seconds = error * float32 + low_error * low
        if seconds > 0.0:
            yield _stake(probe, seconds, draft.view.nodes[node])


def _level_stakes(draft: Draft) -> Iterator[Stake]:
    """Yield of each op priced by a profile alone the call that takes longest."""
    prices, nodes = draft.prices, draft.view.nodes
    of_op: dict[tuple[str, str, str], list[int]] = {}
    for node, source in enumerate(prices.sources):
        if prices.probes[node] is not None and source in ("profile", "roofline"):
            key = (nodes[node].op, *nodes[node].place)
            of_op.setdefault(key, []).append(node)
    for alike in of_op.values():
        probe = prices.probes[max(alike, key=lambda node: prices.float32[node])]
        seconds = sum(prices.errors[n][0] * prices.float32[n] for n in alike)
        if probe is not None and seconds > 0.0:
            yield _stake(probe, seconds, nodes[alike[0]])


def _stake(probe: Probe, seconds: float, node: Node) -> Stake:
    return Stake(probe, seconds, node.device_type, node.device)


def _cast_stakes(
    draft: Draft, variables: Variables, open_ones: frozenset[int], bounds: Bounds
) -> Iterator[Stake]:
    """Yield the casts that an open variable may need, or spare."""
    prices, low_dtype = draft.prices, draft.settings.low_dtype
    for port, error in prices.cast_errors.items():
        if prices.cast_sources[port] == "measured" and error < SURE:
            continue
        producer = variables.of(draft.slots.output_slot(*port))
        readers = {
            variables.of(draft.slots.input_slot(*reader))
            for reader in draft.view.readers(port)
        }
        if open_ones.isdisjoint((producer, *readers)):
            continue
        shape = known_shape(draft.shapes, draft.view, port)
        elements = TensorSpec(shape, "float32").elements
        node = draft.view.nodes[port.node]
        up, down = prices.up.get(port, 0.0), prices.down.get(port, 0.0)
        for seconds, low, high, types in (
            (up, {producer}, readers, (low_dtype, "float32")),
            (down, readers, {producer}, ("float32", low_dtype)),
        ):
            if seconds > 0.0 and _may_be_low(low, bounds) and _may_stay(high, bounds):
                probe = cast_probe(elements, *types)
                yield _stake(probe, error * seconds, node)


def _may_be_low(variables: Iterable[int], bounds: Bounds) -> bool:
    return any(v != FLOAT32_SIDE and bounds.cheap[v] for v in variables)


def _may_stay(variables: Iterable[int], bounds: Bounds) -> bool:
    return any(v == FLOAT32_SIDE or not bounds.dear[v] for v in variables)
