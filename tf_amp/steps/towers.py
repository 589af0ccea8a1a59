"""Towers of one step in a `tf.Graph`, which change the loss scale together."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import training as private
from tf_amp.gradients.votes import Vote

_GROUPS = "_tf_amp_towers"


@dataclasses.dataclass(frozen=True, eq=False)
class _Group:
    """Towers that change the loss scale once.

    Attributes:
      votes: one of each tower.
      adjusting: what adjusts the loss scale.
    """

    votes: tuple[Vote, ...]
    adjusting: tuple[Any, ...]


def as_one_step(found: Sequence[Vote]) -> Sequence[Vote]:
    """Let the towers of one step change the loss scale together; return their votes.

    Several optimizers may apply what comes from the same towers.
    """
    waiting = [vote for vote in found if vote.settled is not None]
    if len(waiting) < 2:
        return found
    groups = _groups_in(waiting[0].settled.graph)
    met = [group for group in groups if not set(waiting).isdisjoint(group.votes)]
    if any(set(waiting) <= set(group.votes) for group in met):
        return found
    towers = dict.fromkeys([vote for group in met for vote in group.votes] + waiting)
    # An optimizer that waits for another must not let what they share wait for it.
    with tf.control_dependencies(None) if met else contextlib.nullcontext():
        adjusting = _settle(tuple(towers))
    for vote in towers:
        for old in [group.adjusting for group in met if vote in group.votes]:
            private.wait_instead(vote.settled, old, ())
        private.wait_instead(vote.settled, vote.adjusting, adjusting)
    groups[:] = [group for group in groups if group not in met]
    groups.append(_Group(tuple(towers), adjusting))
    return found


def _settle(towers: Sequence[Vote]) -> tuple[Any, ...]:
    """Add what adjusts each loss scale if one of the towers overflows."""
    together = tf.reduce_all(tf.stack([vote.own for vote in towers]))
    settlements = {id(v.settlement.state): v.settlement for v in towers}
    return tuple(op for one in settlements.values() for op in one.settle(together))


def _groups_in(graph: Any) -> list[_Group]:
    if not hasattr(graph, _GROUPS):
        setattr(graph, _GROUPS, [])
    groups: list[_Group] = getattr(graph, _GROUPS)
    return groups
