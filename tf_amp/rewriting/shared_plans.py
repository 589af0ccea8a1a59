"""One plan for all workers that train in step: the chief's.

Each worker has its own prices, measured on its own machine, so each might decide
otherwise; a mirrored step would then be as slow as the slowest of them, and its
replicas would round differently. The chief decides, and measures; the others wait for
what it has decided for the same graph. A plan in doubt is compared by all at the same
calls, and they hear from the chief how that ends. Where its plan does not come or does
not fit, a worker decides by itself, and says so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING

from tf_amp.config.peers import Peers, is_joint, peers
from tf_amp.measuring.steps import compared_calls
from tf_amp.measuring.steps.comparison import FEWEST_PAIRS
from tf_amp.message_codes import Code
from tf_amp.rewriting import resumed_plans
from tf_amp.rewriting.resumed_plans import PlanRecord

if TYPE_CHECKING:
    from grappler_pass.planning.draft import Draft, PlanMemory

# The chief may be measuring meanwhile.
PATIENCE_SECONDS = 120.0
# It has said long ago how a comparison goes on.
_VERDICT_SECONDS = 10.0
_VERDICTS = {"go on": None, "16 bits": True, "float32": False}


class SharedPlans:
    """Plans that the workers of a job have in common; a `PlanMemory`."""

    def __init__(
        self, own: PlanMemory, others: Peers, seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Join the workers; the chief is waited for so many seconds."""
        self._own = own
        self._peers = others
        self._seconds = seconds

    def recall(self, draft: Draft) -> tuple[bool, ...] | None:
        """Return what the chief has decided for a graph that all workers run."""
        if self._peers.is_chief or not is_joint(draft.graph_def):
            return self._own.recall(draft)
        key, order = resumed_plans.key_and_order(draft)
        message = self._peers.ask(self._peers.chief, key, self._seconds)
        if message is None:
            Code.WORKER_IS_SILENT.warn(
                "%s has sent no plan for graph %r within %.0f s: %s decides by "
                "itself. Do they run the same program with the same settings?",
                self._peers.chief,
                draft.name,
                self._seconds,
                self._peers.own,
            )
            return self._own.recall(draft)
        plan = json.loads(message)
        if plan.pop("open"):
            compared_calls.share(functools.partial(agreed, self._peers, key))
        return resumed_plans.low_from(PlanRecord(**plan), order)

    def keep(self, draft: Draft) -> None:
        """Remember how a graph came out, and tell the others if this is the chief."""
        self._own.keep(draft)
        if not is_joint(draft.graph_def):
            return
        key, order = resumed_plans.key_and_order(draft)
        record = resumed_plans.record_of(draft, order)
        if self._peers.is_chief:
            message = {**dataclasses.asdict(record), "open": draft.is_open}
            # What was in doubt is sent again once it is decided.
            self._peers.tell(key, json.dumps(message), anew=not draft.is_open)
            if draft.is_open:
                compared_calls.share(functools.partial(agreed, self._peers, key))
        elif draft.recalled is None:
            self._compare(key, record)

    def _compare(self, key: str, record: PlanRecord) -> None:
        """Say whether a plan made here differs from the chief's."""
        message = self._peers.ask(self._peers.chief, key, 0.0)
        if message is not None and json.loads(message)["low"] != record.low:
            Code.PLANS_DISAGREE.warn(
                "Plans disagree: graph %r is not rewritten on %s as on %s.",
                record.graph,
                self._peers.own,
                self._peers.chief,
            )


def memory_for(own: PlanMemory) -> PlanMemory:
    """Return what the pass is to ask about plans made before, here and elsewhere."""
    others = peers()
    return own if others is None else SharedPlans(own, others)


def agreed(workers: Peers, key: str, pairs: int, is_faster: bool | None) -> bool | None:
    """Return how a comparison ends for all workers, or None if it goes on.

    Args:
      workers: who take part.
      key: of the graph.
      pairs: of blocks that have been run.
      is_faster: what this worker has found, which counts if it is the chief.
    """
    if workers.is_chief:
        message = next(word for word, found in _VERDICTS.items() if found is is_faster)
        workers.tell(f"{key}/{pairs}", message)
    if pairs == FEWEST_PAIRS:
        return None
    # By then all workers have run a pair more.
    word = workers.ask(workers.chief, f"{key}/{pairs - 1}", _VERDICT_SECONDS)
    if word is None:
        Code.WORKER_IS_SILENT.warn(
            "%s has not heard of %s whether 16 bits are faster: they are kept.",
            workers.own,
            workers.chief,
        )
        return True
    return _VERDICTS[word]
