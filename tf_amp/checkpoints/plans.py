"""What was decided for each graph, kept and heeded when training is resumed."""

from __future__ import annotations

from collections.abc import Mapping

from tf_amp.checkpoints.record import PlanRecord


def known_plans() -> Mapping[str, PlanRecord]:
    """Return what has been decided in this process, and before it was resumed."""
    return {}


def resume(plans: Mapping[str, PlanRecord], path: str) -> None:
    """Decide graphs from now on as a checkpoint says."""
