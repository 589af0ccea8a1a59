"""The plans made during one run of `fit`, whether graphs were changed or not."""

from __future__ import annotations

import contextlib
import dataclasses
import time

from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.plan import Plan
from tf_amp.rewriting import host


@dataclasses.dataclass(frozen=True)
class WatchedPlan:
    """A plan, and when it was made, in seconds since the epoch.

    Its role is "train", "test" or "predict"; empty where that is not known.
    """

    role: str
    plan: Plan
    is_applied: bool
    time_s: float


# Those of large graphs take megabytes, and some programs trace without end.
_MOST = 256


class PlanWatch:
    """Collects plans between `start` and `stop`.

    Attributes:
      role: what is running now, set by who runs it.
      plans: so far, oldest first; of a graph that was planned twice the one applied, of
        very many graphs those that take most time.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self.role = ""
        self.plans: list[WatchedPlan] = []
        self._taken: list[WatchedPlan] = []

    def start(self) -> None:
        """Collect what is planned from now on."""
        host.current().watchers.append(self._take)

    def stop(self) -> None:
        """Collect no more."""
        with contextlib.suppress(ValueError):
            host.current().watchers.remove(self._take)

    def of_role(self, role: str) -> list[WatchedPlan]:
        """Return the plans for what ran as one role."""
        return [watched for watched in self.plans if watched.role == role]

    def take_new(self) -> list[WatchedPlan]:
        """Return the plans that this has not returned before."""
        known = {id(watched) for watched in self._taken}
        new = [watched for watched in self.plans if id(watched) not in known]
        self._taken = list(self.plans)
        return new

    def _take(self, rewrite: Rewrite) -> None:
        plan = rewrite.plan
        if plan is None:
            return
        watched = WatchedPlan(self.role, plan, rewrite.changed, time.time())
        # Grappler comes twice with each graph, the second time after its own changes.
        known = [
            w for w in self.plans if (w.role, w.plan.graph) == (self.role, plan.graph)
        ]
        if any(w.is_applied for w in known) and not watched.is_applied:
            return
        if known and not known[-1].is_applied:
            self.plans.remove(known[-1])
        self.plans.append(watched)
        if len(self.plans) > _MOST:
            seconds = [w.plan.seconds_before for w in self.plans]
            del self.plans[seconds.index(min(seconds))]
