"""Find the operations that must be float32 for a tolerance to hold.

Suspects are what the plan moved to 16 bits, in the order of execution. Each try is the
same plan without some of them, carried out once and run once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from grappler_pass import pipeline
from grappler_pass.eligibility.exclusions import differentiated, without_call_scopes
from grappler_pass.graph.view import GraphView
from grappler_pass.planning.plan import Plan
from tf_amp.tools import progress
from tf_amp.tools.graph_runs.executing import Case
from tf_amp.tools.verify.verification import Culprit, Verification
from tf_amp.tracing.stamp_reader import forward_names

if TYPE_CHECKING:
    from tf_amp.tools.verify.verifying import Controls

# Whatever is not excluded goes low, wherever it stands: so a try is the plan without
# what is cleared, and nothing else is missing.
_LEVEL = "O3"
_REASON = "tried in float32"

_T = TypeVar("_T")


def rewritten(
    case: Case, *, excluded: Iterable[tuple[str, str]] = (), opt_level: str = ""
) -> pipeline.Rewrite:
    """Run the pass on a case, at its own level by default.

    More nodes may be excluded from going low, each with the reason.
    """
    item = dataclasses.replace(case.item, excluded=(*case.item.excluded, *excluded))
    settings: Any = case.settings
    if opt_level:
        settings = dataclasses.replace(settings, opt_level=opt_level)
    return pipeline.optimize(
        case.graph_def,
        item,
        dataclasses.replace(settings, tuner=None, memory=None),
        shapes=lambda: case.shapes,
        name=case.name,
    )


def low_nodes(plan: Plan | None) -> tuple[str, ...]:
    """Name the nodes that a plan moves to 16 bits, each once, in its order."""
    rows = plan.decisions if plan is not None else ()
    return tuple(dict.fromkeys(row.slot.node for row in rows if row.is_low))


def with_culprits(found: Verification, controls: Controls, plan: Plan) -> Verification:
    """Return a verification that failed with the operations that are to blame.

    It is of the whole plan, of which parts are tried beside the same controls.
    """
    search = _Search(controls, plan)
    culprits = culprits_among(search.suspects, search.holds_with) or ()
    return dataclasses.replace(
        found, culprits=tuple(map(search.described, culprits)), tries=search.tries
    )


class _Search:
    """Tries parts of a plan, and counts."""

    def __init__(self, controls: Controls, plan: Plan) -> None:
        self._controls = controls
        case = controls.case
        view = GraphView.from_graph_def(case.graph_def, case.item)
        self._nodes = {node.name: node for node in view.nodes}
        low = set(low_nodes(plan))
        names = (view.nodes[index].name for index in view.order)
        self.suspects = tuple(name for name in names if name in low)
        self._never_low = tuple(
            (name, _REASON)
            for name in dict.fromkeys(row.slot.node for row in plan.decisions)
            if name not in low
        )
        self.tries = 0

    def holds_with(self, cleared: Sequence[str]) -> bool:
        """Return whether the numbers hold with some suspects in float32."""
        if len(cleared) == len(self.suspects):
            return True
        if not cleared:
            return False
        self.tries += 1
        progress.report("trying parts of the plan", self.tries)
        rewrite = rewritten(
            self._controls.case,
            excluded=(*self._never_low, *((name, _REASON) for name in cleared)),
            opt_level=_LEVEL,
        )
        return self._controls.verification_of(rewrite).ok

    def described(self, name: str) -> Culprit:
        """Return a node as people know it."""
        node = self._nodes[name]
        forward_ops = forward_names(node.proto)
        forward = forward_ops[-1] if forward_ops else differentiated(name)
        forward = forward or without_call_scopes(name)
        layer = forward.rpartition("/")[0]
        pattern = f"^{re.escape(without_call_scopes(name))}$"
        return Culprit(name, node.op, layer, pattern)


def culprits_among(
    suspects: Sequence[_T], holds_with: Callable[[Sequence[_T]], bool]
) -> tuple[_T, ...] | None:
    """Return a smallest set of suspects that must be cleared; None: all do not suffice.

    They are in order; without any one of them it does not hold. Looked for is the
    shortest beginning of the sequence that fixes it when cleared: its last member is a
    culprit. With that one cleared for good the next is looked for before it. So k
    culprits among n suspects take about k * (log2(n) + 1) tries, not counting the two
    that tell whether there is anything to look for. Clearing more must not do harm.
    """
    if not holds_with(suspects):
        return None
    found: list[_T] = []
    end = len(suspects)
    while not holds_with(found):
        end = _shortest_beginning(suspects, end, found, holds_with)
        found.insert(0, suspects[end - 1])
        end -= 1
    return tuple(found)


def _shortest_beginning(
    suspects: Sequence[_T],
    end: int,
    found: Sequence[_T],
    holds_with: Callable[[Sequence[_T]], bool],
) -> int:
    """Return the least length up to `end` that holds, given that `end` does."""
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        if holds_with([*suspects[:middle], *found]):
            high = middle
        else:
            low = middle
    return high
