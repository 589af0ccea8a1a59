"""The ops of a planned graph that keep it from being faster in 16 bits, worst first."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tf_amp.tools.audit.alternatives import Alternatives
from tf_amp.tools.audit.cases import Case
from tf_amp.tools.audit.remedies import Finding, finding_of

SHOWN = 10
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


def obstacles_of(
    alternatives: Alternatives, count: int = SHOWN
) -> tuple[Obstacle, ...]:
    """Return the nodes that lose most, alike ones together.

    Args:
      alternatives: to the plan of a graph.
      count: obstacles to return at most.
    """
    draft = alternatives.draft
    groups: dict[_Kind, list[Case]] = defaultdict(list)
    least = _LEAST_SHARE * draft.plan.seconds_after / max(len(draft.view.nodes), 1)
    for case in _priced(alternatives):
        if case.seconds - case.best_seconds > least:
            groups[_kind_of(case)].append(case)
    found = [_obstacle(kind, cases) for kind, cases in groups.items()]
    found.sort(key=lambda obstacle: -obstacle.lost_seconds)
    return tuple(found[:count])


class _Kind(NamedTuple):
    """What nodes have in common that are shown together."""

    op: str
    shape: str
    dtype: str
    finding: Finding


def _kind_of(case: Case) -> _Kind:
    row = case.decision
    return _Kind(row.op, _shape(case), row.dtype, finding_of(case))


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


def _obstacle(kind: _Kind, cases: list[Case]) -> Obstacle:
    return Obstacle(
        op=kind.op,
        shape=kind.shape,
        nodes=tuple(case.node.name for case in cases),
        dtype=kind.dtype,
        seconds=sum(case.seconds for case in cases),
        lost_seconds=sum(case.seconds - case.best_seconds for case in cases),
        why=kind.finding.why,
        remedy=kind.finding.remedy,
    )
