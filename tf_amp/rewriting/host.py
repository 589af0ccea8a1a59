"""What takes part in the rewriting of arriving graphs, and what is kept of that.

All of it belongs to one `Host`. `enable` and scopes build it; `disable` puts another in
its place, which knows nothing of the settings that were in force.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_amp.latest import Latest
from tf_amp.rewriting.resumed_plans import Memory

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph.shapes import Shapes
    from grappler_pass.graph.view import Item
    from grappler_pass.pipeline import Rewrite
    from grappler_pass.planning.draft import Settings
    from grappler_pass.planning.plan import Plan
    from tf_amp.rewriting.arriving_graphs import Arrival
    from tf_amp.rewriting.compiled import WithoutXla
    from tf_amp.rewriting.dumps import Collector
    from tf_amp.run.graph_cases import GraphCase

# What receives graphs, without values, instead of their being rewritten; a graph that
# it returns runs.
Observer = Callable[["GraphCase"], "GraphDef | None"]
# Gets a graph as given and as rewritten; what it returns runs.
Placer = Callable[[Any, "Rewrite", "Item", "Shapes", "Settings"], "Rewrite"]
# From a graph to the names of nodes that go back to float32, each with the reason.
Dropped = Callable[["Arrival"], tuple[tuple[str, str], ...]]
# Called with every graph that has been planned, whether it changed or not.
Watcher = Callable[["Rewrite"], None]

# Plans of large graphs take megabytes, and some programs trace without end.
_PLANS_KEPT = 256
_MESSAGES_KEPT = 1024


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
      placers: choose the devices of graphs.
      watchers: follow what is planned.
      logs: receive all plans, as the folder of `TF_AMP_LOG` does.
      plans: of the graphs that were changed in this process, oldest first.
    """

    dropped: Dropped = lambda arrival: ()
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
    placers: list[Placer] = dataclasses.field(default_factory=list)
    watchers: list[Watcher] = dataclasses.field(default_factory=list)
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
