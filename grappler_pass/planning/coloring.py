"""Color the slots: the minimum cut at O1, what is eligible where forced.

Slots that must share a color become one variable of the cut. The kernels that a colored
plan uses are checked before it is used.

A plan is used on prices alone if it saves a share of the step, and so much time that a
job may notice, errors of the prices subtracted. Where steps of the program can tell,
any other plan that may be worth it waits for them (`decisions.tried`). What is neither
is not applied at all.

What is off in one op's price is off in the same direction wherever the op is, so within
one op and source errors add up; between them they are independent and add in
quadrature. float32 and 16 bits of one op have a part of their error in common, which
makes the gain smaller or larger but does not change its sign; what steps have taught
of either has none.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from grappler_pass.costs.model import COMMON_VARIANCE, KINDRED
from grappler_pass.costs.op_classes import GATHER, MOVEMENT
from grappler_pass.eligibility.kernels import (
    Kernel,
    Kernels,
    channels_last,
    kernel_of,
    needs_check,
)
from grappler_pass.eligibility.known_wrong import may_be_wrong
from grappler_pass.eligibility.reads import is_cast
from grappler_pass.graph.op_table import VIEW_OPS
from grappler_pass.graph.type_slots import FLOAT32, SlotTable
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.planning.cut import (
    FLOAT32_SIDE,
    CastTerm,
    Problem,
    cast_seconds,
    islands,
    minimum_cut,
)
from grappler_pass.planning.draft import FORCED, PRICED, Draft
from grappler_pass.planning.memory_price import (
    SHARE,
    bytes_problem,
    lightest,
    weighted,
)
from grappler_pass.planning.plan import Cause
from grappler_pass.planning.prices import CastPrice, Prices


def problem_from_prices(draft: Draft, tie: float = 0.0) -> Problem:
    """State the assignment problem whose minimum cut is the plan of a priced draft.

    16 bits may be slower by a share of a node's float32 seconds, `tie`, if they halve
    what the node writes.
    """
    view, slots, prices = draft.view, draft.slots, draft.prices
    variables, count = draft.constraints.variables, draft.constraints.variable_count
    float32, low = [0.0] * count, [0.0] * count
    for i, variable, float32_seconds, seconds in priced_nodes(draft):
        ports = view.output_ports(i)
        writes_low = any(slots.output_slot(*port) in variables for port in ports)
        favor = tie if writes_low else 0.0
        float32[variable] += float32_seconds
        low[variable] += seconds - favor * float32_seconds
    readers_of: dict[Port, set[int]] = {}
    for port in prices.casts:
        if slots.output_dtype(*port) != FLOAT32:
            continue
        readers = readers_of.setdefault(draft.reads.canonical.get(port, port), set())
        for reader in view.readers(port):
            node = view.nodes[reader.node]
            # A Cast may read a low tensor as well.
            if not is_cast(node) or node.name in view.item.untouchable:
                readers.add(variables.get(slots.input_slot(*reader), FLOAT32_SIDE))
    terms = []
    for port, readers in readers_of.items():
        producer = variables.get(slots.output_slot(*port), FLOAT32_SIDE)
        price = prices.casts.get(port, CastPrice())
        terms.append(CastTerm(producer, frozenset(readers), *price))
    return Problem(float32, low, terms)


def priced_nodes(draft: Draft) -> Iterator[tuple[int, int, float, float]]:
    """Yield each node that may be in 16 bits, its variable, its seconds in either type.

    A node is priced once: by the first of its slots that may be in 16 bits.
    """
    variables, slots_of = draft.constraints.variables, draft.slots.slots_of
    both = zip(draft.prices.float32, draft.prices.low, strict=True)
    for node, (float32, low) in enumerate(both):
        if low is not None:
            first = next(slot for slot in slots_of[node] if slot in variables)
            yield node, variables[first], float32, low


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

    def is_sure(self, margin: float, errors: float = 1.0) -> bool:
        """Return whether it is beyond a share of the step and so many of its errors."""
        least = max(margin * self.step, SURE_SECONDS)
        return self.seconds - errors * self.error >= least

    @property
    def is_certain(self) -> bool:
        """Whether steps need not tell, if the prices are of this very device."""
        return self.is_sure(CERTAIN_SHARE, _CERTAIN_ERRORS)

    @property
    def may_be_worth_it(self) -> bool:
        """Whether steps may find that it pays."""
        return self.seconds > 0.0 and self.seconds + self.error >= _WORTH * self.step


def gain_error(
    view: Graph,
    prices: Prices,
    low_nodes: Iterable[int],
    casts: Iterable[tuple[float, CastTerm]],
) -> float:
    """Return the standard deviation of the gain, in seconds per step.

    `casts` are the seconds that are charged, each with the term that charges them.
    """
    float32: defaultdict[tuple[str, str], float] = defaultdict(float)
    low: defaultdict[tuple[str, str], float] = defaultdict(float)
    for node in low_nodes:
        group = view.nodes[node].op, prices.sources[node]
        error32, error16 = prices.errors[node]
        float32[group] += error32 * prices.float32[node]
        low[group] += error16 * (prices.low[node] or 0.0)
    variances = []
    for group, high in float32.items():
        common = 0.0 if group[1] == "learned" else COMMON_VARIANCE
        separate = (1.0 - common) * (high**2 + low[group] ** 2)
        variances.append(common * (high - low[group]) ** 2 + separate)
    cast = sum(seconds * term.error for seconds, term in casts)
    return math.sqrt(sum(variances) + cast**2)


def fault_of(draft: Draft) -> Callable[[SlotTable, Node], str]:
    """Return a function from a node to why its 16-bit kernel may not be used."""
    settings, kernels = draft.settings, draft.settings.kernels

    def fault(slots: SlotTable, node: Node) -> str:
        if kernels is None or not may_be_wrong(node.op):
            return ""
        return kernels.fault(_kernel(draft, slots, node), compiled=settings.fuses)

    return fault


def _kernel(draft: Draft, slots: SlotTable, node: Node) -> Kernel:
    """Return the kernel of a node in the layout that it will have in 16 bits."""
    kernel = kernel_of(draft.view, slots, draft.shapes, node, draft.low_dtype)
    is_laid_out = draft.settings.layouts is not None and kernel.device_type == "GPU"
    return channels_last(kernel) if is_laid_out else kernel


def _to_check(draft: Draft) -> tuple[Kernels, list[Kernel]] | None:
    """Return who checks, and each kernel of a colored draft that is to be checked.

    XLA's own are not: what it compiles was found to be right.
    """
    checking = draft.settings.kernels
    if checking is None or draft.settings.fuses:
        return None
    nodes = (draft.view.nodes[node] for node in sorted(draft.low_nodes))
    kernels = (_kernel(draft, draft.slots, n) for n in nodes if may_be_wrong(n.op))
    wanted = list({k.key: k for k in kernels if needs_check(k)}.values())
    return (checking, wanted) if wanted else None


def is_wrong(draft: Draft) -> bool:
    """Have the kernels of a draft checked; return whether any has turned out wrong."""
    to_check = _to_check(draft)
    return to_check is not None and to_check[0].check(to_check[1])


def unchecked(draft: Draft) -> str:
    """Say which kernels of a plan have not been checked; "" where all have."""
    to_check = _to_check(draft)
    return to_check[0].unchecked(to_check[1]) if to_check is not None else ""


# Lists of tensors are no part of it: what is kept in them for the backward pass takes
# half the memory in 16 bits.
_MOVING = VIEW_OPS | GATHER | {op for op in MOVEMENT if not op.startswith("Tensor")}


def color_slots(draft: Draft) -> Draft:
    """Color the slots; remember why an eligible one was left in float32."""
    settings, variables = draft.settings, draft.constraints.variables
    slots = range(len(draft.slots.slots))

    def colored(low: Iterable[bool], causes: Iterable[Cause]) -> Draft:
        return dataclasses.replace(draft, low=tuple(low), fallback=tuple(causes))

    def all_alike(cause: Cause) -> Draft:
        return colored((False for _ in slots), (cause for _ in slots))

    if not draft.has_candidates:
        return all_alike(Cause.ISLAND)
    if draft.recalled is not None:
        return colored(draft.recalled, (Cause.RESUMED for _ in slots))
    if settings.opt_level not in (PRICED, *FORCED):
        return all_alike(Cause.LEVEL)
    problem, is_forced = problem_from_prices(draft), settings.opt_level in FORCED
    if is_forced:
        wanted = _forced_problem(draft, problem)
    else:
        wanted = problem_from_prices(draft, settings.tie)
    low, causes = _colors(draft, wanted)
    is_light = False
    if settings.saves_memory and not is_forced:
        low, causes, is_light = _lighter(draft, problem, wanted, (low, causes))
    gain = _gain(draft, problem, low)
    # Of a cut that takes no 16 bits: what they would come to wherever they may be.
    tried = gain if any(low) else _gain(draft, problem, [True] * len(low))
    draft = dataclasses.replace(
        draft, low_speedup=tried.step / (tried.step - tried.seconds)
    )
    is_sure = is_forced or is_light or gain.is_sure(settings.margin)
    is_used = is_sure or (settings.own_steps is not None and gain.may_be_worth_it)
    if not is_used:
        why = Cause.HOST if draft.is_host_bound else Cause.MARGIN
        causes |= {v: why for v, is_low in enumerate(low) if is_low}
    draft = colored(
        (is_used and slot in variables and low[variables[slot]] for slot in slots),
        (causes.get(variables.get(slot, FLOAT32_SIDE), Cause.COST) for slot in slots),
    )
    if not is_used:
        return draft
    draft = dataclasses.replace(draft, gain_error=gain.error, is_sure=is_sure)
    is_certain = gain.is_certain and _is_priced_here(draft)
    return dataclasses.replace(draft, is_certain=is_certain)


def _gain(draft: Draft, problem: Problem, low: Sequence[bool]) -> Gain:
    """Return what an assignment of types is predicted to save."""
    low_nodes = (node for node, variable, _, _ in priced_nodes(draft) if low[variable])
    casts = [(cast_seconds(term, low), term) for term in problem.casts]
    saved = problem.seconds([False] * len(low)) - problem.seconds(low)
    float32 = sum(draft.prices.float32)
    starts = sum(seconds > 0.0 for seconds, _ in casts)
    step = draft.step_seconds(float32)
    return Gain(
        step - draft.step_seconds(float32 - saved, starts),
        gain_error(draft.view, draft.prices, low_nodes, casts),
        step,
    )


_Colors = tuple[tuple[bool, ...], dict[int, Cause]]


def _lighter(
    draft: Draft, problem: Problem, wanted: Problem, fastest: _Colors
) -> tuple[tuple[bool, ...], dict[int, Cause], bool]:
    """Return the colors that hold the least, and whether they pay by that alone.

    They may take half of the share of a step that memory may cost.
    """

    def seconds(colors: _Colors) -> float:
        gain = _gain(draft, problem, colors[0])
        return gain.step - gain.seconds

    held = bytes_problem(draft)
    all_float32: _Colors = ((False,) * len(held.float32_seconds), {})
    float32_bytes = held.seconds(all_float32[0])
    shortest = min(seconds(fastest), seconds(all_float32))
    most = (1.0 + SHARE / 2) * shortest
    found = lightest(
        lambda weight: _colors(draft, weighted(wanted, held, weight)),
        seconds,
        most,
        4.0 * SHARE * shortest / max(float32_bytes, 1.0),
    )
    low, causes = found or fastest
    is_light = held.seconds(low) < float32_bytes
    is_light &= seconds((low, causes)) <= most
    return low, causes, is_light


def _colors(draft: Draft, wanted: Problem) -> _Colors:
    """Return which variables are low, and why some had no choice.

    What is kept in float32 after a cut changes what its neighbors cost, so that it is
    cut again.
    """
    variables = draft.constraints.variables
    is_forced = draft.settings.opt_level in FORCED
    both = list(zip(wanted.float32_seconds, wanted.low_seconds, strict=True))
    allowed = {variables[slot] for slot in draft.constraints.allow}
    written = (variables[s] for s in draft.written_slots if s in variables)
    causes = dict.fromkeys(written, Cause.WRITTEN)
    while True:
        sides = ((0.0, math.inf) if v in causes else s for v, s in enumerate(both))
        float32_seconds, low_seconds = zip(*sides, strict=True)
        pinned = Problem(float32_seconds, low_seconds, wanted.casts)
        low = minimum_cut(pinned, low_at_ties=is_forced)
        alone = islands(wanted, low, allowed)
        if not alone:
            return low, causes
        causes |= dict.fromkeys(alone, Cause.ISLAND)


def _is_priced_here(draft: Draft) -> bool:
    """Return whether nearly all that is low has prices of this very device.

    Of what is far smaller than anything measured it has none.
    """
    models, prices = draft.settings.models, draft.prices
    elsewhere = 0.0
    for i in draft.low_nodes:
        model = models.get(draft.view.nodes[i].device_type) or models["CPU"]
        is_own = prices.sources[i] == "learned" or model.profile.device is not None
        if not is_own or max(prices.errors[i]) > KINDRED:
            elsewhere += prices.float32[i]
    return elsewhere <= CERTAIN_SHARE * sum(prices.float32[i] for i in draft.low_nodes)


def _forced_problem(draft: Draft, problem: Problem) -> Problem:
    """Return a problem whose minimum cut is low but for what makes casts smaller.

      exp(f32) --> slice(low) --> matmul(low)     casts all that the slice reads
      exp(f32) --> slice(f32) --> matmul(low)     casts what is left of it

    Values are rounded and moved in either order, so that results are the same. What
    computes is low: the level does not ask what that costs. Data movement counts as no
    slower in 16 bits than in float32, so that it is low unless that saves on casts.
    """
    float32 = [0.0] * draft.constraints.variable_count
    for slot, variable in draft.constraints.variables.items():
        if draft.view.nodes[draft.slots.node_of[slot]].op not in _MOVING:
            float32[variable] = math.inf
    for _, variable, seconds, low in priced_nodes(draft):
        float32[variable] += max(0.0, seconds - low)
    return Problem(float32, [0.0] * len(float32), problem.casts)
