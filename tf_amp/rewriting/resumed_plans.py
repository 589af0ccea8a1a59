"""What was decided for each graph, kept and used when training is resumed.

A graph is known again by what its nodes compute from what, not by their names, which
count up from trace to trace. Its slots are put in an order of the same kind, so that a
plan is one bit per slot.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from absl import logging

from tf_amp.latest import Latest

if TYPE_CHECKING:
    from grappler_pass.planning.draft import Draft

# More graphs than a training has; some programs trace without end.
_MOST = 256
_NUMBER = re.compile(r"(\d+)")


@dataclasses.dataclass(frozen=True)
class PlanRecord:
    """What was decided for one graph.

    Attributes:
      graph: its name, for people.
      low: whether each slot is low, a hexadecimal number with a bit per slot, in the
        order of `key_and_order`.
      count: how many slots there are.
    """

    graph: str
    low: str
    count: int


class Memory:
    """The plans made and resumed so far, for the pass to ask.

    Graphs come on several threads at once.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._resumed: Latest[str, PlanRecord] = Latest(_MOST)
        self._made: Latest[str, PlanRecord] = Latest(_MOST)

    def recall(self, draft: Draft) -> tuple[bool, ...] | None:
        """Return what a resumed training has decided for a graph; None if unknown."""
        if not self._resumed:
            return None
        key, order = key_and_order(draft)
        plan = self._resumed.get(key)
        if plan is None:
            logging.info("Graph %r is not among the plans resumed.", draft.name)
            return None
        return low_from(plan, order)

    def keep(self, draft: Draft) -> None:
        """Remember how a graph came out, once that is decided."""
        if not draft.is_open:
            key, order = key_and_order(draft)
            self._made.put(key, record_of(draft, order))

    def known(self) -> dict[str, PlanRecord]:
        """Return what was decided here, and before the training was resumed."""
        return {**self._resumed.items(), **self._made.items()}

    def resume(self, plans: Mapping[str, PlanRecord]) -> None:
        """Decide graphs from now on as a checkpoint says; others as before."""
        for key, plan in plans.items():
            self._resumed.put(key, plan)


def key_and_order(draft: Draft) -> tuple[str, list[int]]:
    """Return what a graph is known by, and its slots in an order of their own."""
    # Imported here: what loads the pass waits for the first graph.
    from tf_amp.compare.fingerprint import digests_of_nodes

    digests = digests_of_nodes(draft.graph_def, draft.view, draft.shapes)
    names = [node.name for node in draft.view.nodes]

    def rank(node: int) -> tuple[bytes, list[str]]:
        # `dense_10` follows `dense_9`.
        parts = _NUMBER.split(names[node])
        return digests[node], [p.zfill(12) if p.isdigit() else p for p in parts]

    nodes = sorted(digests, key=rank)
    made = hashlib.blake2b(draft.settings.low_dtype.encode(), digest_size=16)
    for node in nodes:
        made.update(digests[node])
    order = [slot for node in nodes for slot in draft.slots.slots_of[node]]
    return made.hexdigest(), order


def record_of(draft: Draft, order: Sequence[int]) -> PlanRecord:
    """Return how a graph came out; `order` is that of `key_and_order`."""
    bits = "".join(str(int(draft.low[slot])) for slot in order)
    return PlanRecord(draft.name, f"{int(bits or '0', 2):x}", len(order))


def low_from(plan: PlanRecord, order: Sequence[int]) -> tuple[bool, ...]:
    """Return whether each slot is low; nothing that fits, if the plan does not."""
    if not order or plan.count != len(order):
        return ()
    bits = f"{int(plan.low, 16):0{plan.count}b}"
    low = dict(zip(order, bits, strict=True))
    return tuple(low[slot] == "1" for slot in range(len(order)))
