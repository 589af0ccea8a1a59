"""Find the operations that must be float32 for a tolerance to hold.

Suspects are what the plan moved to 16 bits, in the order of execution. Each try is the
same plan without some of them, carried out once and run once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grappler_pass.eligibility.exclusions import differentiated, without_call_scopes
from grappler_pass.graph.view import GraphView
from grappler_pass.planning.plan import Plan
from tf_amp.tools import progress
from tf_amp.tools.verify.bisection import culprits_among
from tf_amp.tools.verify.culprits import Culprit, culprit_of
from tf_amp.tools.verify.verification import Verification
from tf_amp.tools.verify.verifying import Controls, low_nodes, rewritten
from tf_amp.tracing.stamp_reader import origins_of

# Whatever is not excluded goes low, wherever it stands: so a try is the plan without
# what is cleared, and nothing else is missing.
_LEVEL = "O3"
_REASON = "tried in float32"


def with_culprits(found: Verification, controls: Controls, plan: Plan) -> Verification:
    """Return a verification that failed with the operations that are to blame.

    Args:
      found: of the whole plan.
      controls: runs of the same case in float32.
      plan: the whole.

    Raises:
      NotMeasurableError: a try cannot be run; the message says why.
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
        origins = origins_of(node.proto)
        origin = origins[-1] if origins else differentiated(name)
        forward = origin or without_call_scopes(name)
        return culprit_of(name, node.op, forward.rpartition("/")[0])
