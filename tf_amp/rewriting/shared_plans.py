"""One plan for all workers that train in step: the chief's.

Each worker has its own prices, those of its machine, so each might decide otherwise; a
mirrored step would then be as slow as the slowest of them, and its replicas would round
differently. The chief decides; the others wait for what it has decided for the same
graph. A plan in doubt is compared by all at the same calls, and they hear from the
chief how that ends. Where its plan does not come or does not fit, a worker decides by
itself, and says so.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from tf_amp.compare import call_sites
from tf_amp.compare.alternation import FEWEST_PAIRS
from tf_amp.config.workers import Peers, is_joint, peers
from tf_amp.message_codes import Code
from tf_amp.rewriting import resumed_plans
from tf_amp.rewriting.resumed_plans import PlanRecord

if TYPE_CHECKING:
    from grappler_pass.planning.draft import Draft, PlanMemory

# The chief may be checking kernels meanwhile.
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
        key, order = _key_and_order(draft)
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
        is_open = plan.pop("open")
        low = resumed_plans.low_from(PlanRecord(**plan), order)
        if is_open:
            agreement = AgreementOfWorkers(self._peers, key)
            call_sites.current().share(agreement, in_float32=not any(low))
        elif any(low):
            call_sites.current().accept()
        return low

    def keep(self, draft: Draft) -> None:
        """Remember how a graph came out, and tell the others if this is the chief."""
        self._own.keep(draft)
        if not is_joint(draft.graph_def):
            return
        key, order = _key_and_order(draft)
        record = resumed_plans.record_of(draft, order)
        if self._peers.is_chief:
            message = {**dataclasses.asdict(record), "open": draft.is_open}
            # What was in doubt is sent again once it is decided.
            self._peers.tell(key, json.dumps(message), anew=not draft.is_open)
            if draft.is_open:
                call_sites.current().share(AgreementOfWorkers(self._peers, key))
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


def _key_and_order(draft: Draft) -> tuple[str, list[int]]:
    """Return what the plan of a graph is known by, and its slots in their order."""
    key, order = resumed_plans.key_and_order(draft)
    return f"{key} late" if call_sites.current().is_late else key, order


@dataclasses.dataclass(frozen=True)
class AgreementOfWorkers:
    """How a comparison goes on for all workers: as the chief has found.

    Attributes:
      workers: who take part.
      key: of the plan.
    """

    workers: Peers
    key: str

    def verdict(self, pairs: int, is_faster: bool | None) -> bool | None:
        """Return how it ends, or None if it goes on."""
        found = next(word for word, each in _VERDICTS.items() if each is is_faster)
        self._tell(f"{pairs}", found)
        if pairs == FEWEST_PAIRS:
            return None
        # By then all workers have run a pair more.
        word = self._heard(f"{pairs - 1}", "whether 16 bits are faster: they are kept")
        return True if word is None else _VERDICTS[word]

    def _tell(self, what: str, word: str) -> None:
        if self.workers.is_chief:
            self.workers.tell(f"{self.key}/{what}", word)

    def _heard(self, what: str, of: str) -> str | None:
        """Return what the chief has said; say what follows where it has not."""
        chief = self.workers.chief
        word = self.workers.ask(chief, f"{self.key}/{what}", _VERDICT_SECONDS)
        if word is None:
            Code.WORKER_IS_SILENT.warn(
                "%s has not heard of %s %s.", self.workers.own, chief, of
            )
        return word
