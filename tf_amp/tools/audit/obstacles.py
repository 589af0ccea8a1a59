"""The ops of a planned graph that keep it from being faster in 16 bits, worst first."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator

from tf_amp.tools.audit.alternatives import Alternatives
from tf_amp.tools.audit.cases import Case
from tf_amp.tools.audit.remedies import Finding, finding_of

_SHOWN = 10
# Losses under this share of what the mean node takes are not worth a look.
_LEAST_SHARE = 1e-3


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


def obstacles_of(alternatives: Alternatives) -> tuple[Obstacle, ...]:
    """Return the nodes that lose most by their plan, alike ones together."""
    draft = alternatives.draft
    groups: dict[tuple[str, str, str, Finding], list[Case]] = defaultdict(list)
    least = _LEAST_SHARE * draft.plan.seconds_after / max(len(draft.view.nodes), 1)
    for case in _priced(alternatives):
        if case.seconds - case.best_seconds > least:
            row = case.decision
            groups[row.op, _shape(case), row.dtype, finding_of(case)].append(case)
    found = [
        Obstacle(
            op=op,
            shape=shape,
            nodes=tuple(case.node.name for case in cases),
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


def _priced(alternatives: Alternatives) -> Iterator[Case]:
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
            rows[0],
            reason=(low or rows)[0].reason,
            dtype=(low or rows)[0].dtype,
        )
        yield Case(draft, node, first, bool(low), roofline, alternatives)


def _shape(case: Case) -> str:
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
