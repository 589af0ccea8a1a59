"""What takes part in the rewriting of arriving graphs, and what is kept of that.

All of it belongs to one `Host`. `enable` and scopes build it; `disable` puts another in
its place, which knows nothing of the settings that were in force.

Kept is what was decided for each graph, which is used when training is resumed. A graph
is known again by what its nodes compute from what, not by their names, which count up
from trace to trace. Its slots are put in an order of the same kind, so that a plan is
one bit per slot.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from tf_amp.latest import Latest

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph.shapes import Shapes
    from grappler_pass.graph.view import Item
    from grappler_pass.pipeline import Rewrite
    from grappler_pass.planning.draft import Draft, Settings
    from grappler_pass.planning.plan import Plan
    from tf_amp.rewriting.arriving_graphs import Arrival
    from tf_amp.rewriting.compiled import WithoutXla
    from tf_amp.rewriting.dumps import Collector
    from tf_amp.run.graph_cases import GraphCase

# What receives graphs, without values, instead of their being rewritten; a graph that
# it returns runs.
Observer = Callable[["GraphCase"], "GraphDef | None"]

# Plans of large graphs take megabytes, and some programs trace without end.
_PLANS_KEPT = _RECORDS_KEPT = 256
_MESSAGES_KEPT = 1024
_NUMBER = re.compile(r"(\d+)")


class Pass(NamedTuple):
    """What may become of an arriving graph, in its turn.

    Attributes:
      name: the stage, for reports of failures.
      without: what becomes of a graph where the pass fails.
      apply: returns the graph to run, None for the same.
      mark: an attribute that every graph has that anything may become of.
    """

    name: str
    without: str
    apply: Callable[[Arrival], GraphDef | None]
    mark: str = ""


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
        self._resumed: Latest[str, PlanRecord] = Latest(_RECORDS_KEPT)
        self._made: Latest[str, PlanRecord] = Latest(_RECORDS_KEPT)

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


@dataclasses.dataclass(frozen=True)
class Host:
    """What takes part in the rewriting of arriving graphs, besides the pass.

    Who takes part for a while adds itself to a list, and removes itself; the last one
    counts, and of watchers all do.

    Attributes:
      dropped: names the nodes of a graph that go back to float32, each with the reason.
      passes: those that follow the rewriting, in their order.
      skipped_steps: returns how many steps were skipped for gradients that are not
        finite; None where losses are not scaled, or where that cannot be read.
      without_stamps: returns the settings of a graph without stamps; None: it stays
        float32.
      memory: of plans, for graphs that come again when training is resumed.
      said: what has been logged, and need not be again.
      awaiting: by the name of a function or graph, what failed outside of its calls.
      observer: of a command that looks at the graphs of a script.
      without_xla: functions that run without XLA, so that an observer receives them.
      placers: choose the devices of graphs: each gets one as given and as rewritten;
        what it returns runs.
      watchers: called with every graph that has been planned, whether it changed or
        not.
      logs: receive all plans, as the folder of `TF_AMP_LOG` does.
      plans: of the graphs that were changed in this process, oldest first.
    """

    dropped: Callable[[Arrival], tuple[tuple[str, str], ...]] = lambda arrival: ()
    passes: tuple[Pass, ...] = ()
    without_stamps: Callable[[], str | None] = lambda: None
    skipped_steps: Callable[[], int | None] = lambda: None
    memory: Memory = dataclasses.field(default_factory=Memory)
    said: Latest[Hashable, bool] = dataclasses.field(
        default_factory=lambda: Latest(_MESSAGES_KEPT)
    )
    awaiting: dict[str, str] = dataclasses.field(default_factory=dict)
    observer: Observer | None = None
    without_xla: WithoutXla | None = None
    placers: list[Callable[[Any, Rewrite, Item, Shapes, Settings], Rewrite]] = (
        dataclasses.field(default_factory=list)
    )
    watchers: list[Callable[[Rewrite], None]] = dataclasses.field(default_factory=list)
    logs: list[Collector] = dataclasses.field(default_factory=list)
    plans: deque[Plan] = dataclasses.field(
        default_factory=lambda: deque(maxlen=_PLANS_KEPT)
    )

    def is_news(self, message: Hashable) -> bool:
        """Return whether something is to be logged: once, if it comes again."""
        is_new = message not in self.said
        self.said.put(message, True)
        return is_new


_host = Host()


def current() -> Host:
    """Return what takes part in rewriting now."""
    return _host


def build(**parts: Any) -> None:
    """Let these take part from now on, by their names; what is known stays known."""
    global _host
    _host = dataclasses.replace(_host, **parts)


def forget() -> None:
    """Know nothing any more of the settings that were in force.

    Functions traced under them still arrive, and take the same passes. Who takes part
    for a while does so until it removes itself.
    """
    new = Host()
    names = ("without_stamps", "memory", "said", "awaiting")
    build(**{name: getattr(new, name) for name in names})
