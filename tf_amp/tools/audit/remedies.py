"""Why an op gains little from 16 bits, and what its author can do; `RULES` is all.

A rule looks at one node of a planned graph; the first that knows something speaks.
Nothing here changes a plan.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from grappler_pass.graph.op_traits import INPUT, RESULT
from grappler_pass.planning.plan import Cause, Decision
from tf_amp.tools.audit.cases import Alternatives, AuditedNode

_HALF_FULL = 0.5
# An op that takes less than this many starts is bound by them.
_LAUNCHES = 1.5
_CAST_SHARE = 0.25
_BY_LISTS = ("DENY", "DENY_TAINT", "NOT_LISTED")
_SHOWN = 10
# Losses under this share of what the mean node takes are not worth a look.
_LEAST_SHARE = 1e-3


@dataclasses.dataclass(frozen=True)
class Finding:
    """What holds an op back, and the remedy; empty where there is none."""

    why: str
    remedy: str = ""


def _held_by_rule(case: AuditedNode) -> Finding | None:
    """What the op lists and the caller keep in float32, whatever it costs."""
    if case.is_low or case.cause in ("COST", "CASTS", "MARGIN"):
        return None
    return Finding(_reason_text(case), _list_remedy(case))


def _reason_text(case: AuditedNode) -> str:
    """Return the plan's reason; of a culprit the op, so that alike nodes say alike."""
    reason = case.decision.reason
    view = case.draft.view
    if case.cause == "STATE_UPDATE":
        return reason.cause.value
    if reason.detail not in view.index:
        return str(reason)
    return f"{reason.cause.value}: {view.nodes[view.index[reason.detail]].op}"


def _list_remedy(case: AuditedNode) -> str:
    """Say what would free the node; empty where nothing that was tried does."""
    if case.cause not in (*_BY_LISTS, "RANGE"):
        return ""
    rates = case.roofline.matrix_flops
    computes = rates.get("bfloat16", 0.0) > rates["float32"]
    if case.low_dtype == "float16" and computes:
        if case.alternatives.is_free_in("bfloat16", case.node):
            return "plan in bfloat16, which has float32's range"
    if case.cause not in _BY_LISTS:
        return ""
    edit = case.alternatives.freeing_edit(case.listed_op, case.node)
    return f"if you know it to be harmless: {edit}" if edit else ""


def _unaligned(case: AuditedNode) -> Finding | None:
    """Rows that tensor cores cannot read."""
    units, product = case.roofline.multiprocessors, case.product
    if units is None or product is None:
        return None
    step = units.alignment.get(case.low_dtype, 1)
    found = units.unaligned(product, case.low_dtype)
    if not found:
        return None
    places = {product.m: "rows (m) of", product.k: "sum (k) over"}
    places[product.n] = "columns (n) of"
    names = " and ".join(f"{places[size]} {size}" for size in found)
    changes = ", ".join(f"{size} -> {-(-size // step) * step}" for size in found)
    return Finding(
        f"{names}: no multiple of {step}, tensor cores idle or starve",
        f"make the dimension a multiple of {step}: {changes}",
    )


def _cast_heavy(case: AuditedNode) -> Finding | None:
    """Casts that eat what 16 bits save."""
    row = case.decision
    if case.is_low and row.cast_seconds < _CAST_SHARE * case.seconds:
        return None
    if not case.is_low and case.cause != "CASTS":
        return None
    why = (
        f"casts take {1e3 * row.cast_seconds:.3g} ms of it"
        if case.is_low
        else "16 bits are faster, the casts around it are not worth it"
    )
    remedies = map(_neighbor_remedy, case.float32_neighbors())
    return Finding(why, next(filter(None, remedies), ""))


def _neighbor_remedy(neighbor: Decision) -> str:
    """Say how a neighbor could go to 16 bits; empty of constants and variables."""
    reason = neighbor.reason
    if reason.cause is Cause.PRESERVED or reason.detail in (INPUT, RESULT):
        return f"feed and fetch 16 bits ({neighbor.op})"
    if reason.cause is Cause.FIXED:
        return ""
    return f"free its neighbor {neighbor.op}: {reason.cause.value}"


def _idle_device(case: AuditedNode) -> Finding | None:
    """Products with fewer tiles than the device has multiprocessors."""
    units, product = case.roofline.multiprocessors, case.product
    if units is None or product is None:
        return None
    share = units.fill(product)
    if share > _HALF_FULL:
        return None
    return Finding(
        f"{product.m} x {product.n} fills {share:.0%} of the {units.count} "
        "multiprocessors",
        "larger batch",
    )


def _launch_bound(case: AuditedNode) -> Finding | None:
    """Ops that take no longer than it takes to start them."""
    launch = max(case.roofline.overhead_seconds, case.roofline.dispatch_seconds)
    starts = launch * max(len(case.works), 1) * case.weight
    if case.seconds > _LAUNCHES * starts:
        return None
    return Finding(
        f"starting it ({1e6 * launch:.0f} us) takes most of the time",
        "larger batch, or fuse it with its neighbors (XLA)",
    )


def _not_faster(case: AuditedNode) -> Finding | None:
    """Ops whose price in 16 bits is no better."""
    if case.is_low:
        return None
    return Finding(str(case.decision.reason))


def _narrow(case: AuditedNode) -> Finding | None:
    """Products whose tiles are too small to keep the 16-bit units fed."""
    product = case.product
    if product is None or case.memory_seconds > _HALF_FULL * case.seconds:
        return None
    return Finding(
        f"tiles of {product.m} x {product.n}, summed over {product.k}, do not keep "
        "the 16-bit units busy",
        "wider layers, multiples of 128",
    )


def _memory_bound(case: AuditedNode) -> Finding | None:
    """What is left: 16 bits halve what is moved, and no more."""
    why = "bound by memory: 16 bits halve what is moved, no more"
    if case.product is None:
        return Finding(why)
    return Finding(why, "wider layers do more with what they read")


RULES: tuple[Callable[[AuditedNode], Finding | None], ...] = (
    _held_by_rule,
    _unaligned,
    _idle_device,
    _cast_heavy,
    _launch_bound,
    _not_faster,
    _narrow,
    _memory_bound,
)


def finding_of(case: AuditedNode) -> Finding:
    """Return what the first rule that applies says."""
    return next(found for rule in RULES if (found := rule(case)) is not None)


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """Nodes of one op and shape that are held back in the same way.

    Attributes:
      op: the nodes' op.
      shape: of what they compute, for people.
      nodes: their names.
      dtype: what they have in the planned step.
      seconds: that they take in it, casts included.
      lost_seconds: of these, what 16 bits at their best would save.
      why: what holds them back.
      remedy: what to change; empty where nothing can be.
    """

    op: str
    shape: str
    nodes: tuple[str, ...]
    dtype: str
    seconds: float
    lost_seconds: float
    why: str
    remedy: str


def obstacles_of(functions: Iterable[Alternatives]) -> tuple[Obstacle, ...]:
    """Return the nodes that lose most by their plans, alike ones together."""
    groups: dict[tuple[str, str, str, Finding], list[AuditedNode]] = defaultdict(list)
    for case in itertools.chain.from_iterable(map(_losing, functions)):
        row = case.decision
        groups[row.op, _shape(case), row.dtype, finding_of(case)].append(case)
    found = [
        Obstacle(
            op=op,
            shape=shape,
            nodes=tuple(case.name for case in cases),
            dtype=dtype,
            seconds=sum(case.seconds for case in cases),
            lost_seconds=sum(case.seconds - case.best_seconds for case in cases),
            why=finding.why,
            remedy=finding.remedy,
        )
        for (op, shape, dtype, finding), cases in groups.items()
    ]
    found.sort(key=lambda obstacle: -obstacle.lost_seconds)
    return tuple(found[:_SHOWN])


def _losing(alternatives: Alternatives) -> Iterator[AuditedNode]:
    """Yield the nodes of which 16 bits at their best would save more than nothing."""
    draft, runs = alternatives.draft, alternatives.runs
    seconds = runs * draft.plan.seconds_after
    least = _LEAST_SHARE * seconds / max(len(draft.view.nodes), 1)
    for case in _priced(alternatives):
        if case.seconds - case.best_seconds > least:
            yield case


def _priced(alternatives: Alternatives) -> Iterator[AuditedNode]:
    """Yield the nodes that take time, as their plan has them."""
    draft, roofline = alternatives.draft, alternatives.target.profile.roofline
    for node in draft.view.nodes:
        slots = draft.slots.slots_of[node.index]
        if not slots or draft.prices.float32[node.index] <= 0.0:
            continue
        rows = [draft.plan.decisions[slot] for slot in slots]
        low = [row for row in rows if row.is_low]
        # The first slot carries the price, a low one the reason.
        first = dataclasses.replace(
            rows[0].times(alternatives.runs),
            reason=(low or rows)[0].reason,
            dtype=(low or rows)[0].dtype,
        )
        yield AuditedNode(draft, node, first, bool(low), roofline, alternatives)


def _shape(case: AuditedNode) -> str:
    product = case.product
    if product is not None:
        batch = f"{product.batch} x " if product.batch > 1 else ""
        return f"{batch}[{product.m},{product.k}]x[{product.k},{product.n}]"
    tensors = [
        spec
        for spec in (*case.call.outputs, *case.call.inputs)
        if spec.dtype != "resource"
    ]
    sizes = tensors[0].dims if tensors else ()
    return "x".join(map(str, sizes)) or "scalar"
