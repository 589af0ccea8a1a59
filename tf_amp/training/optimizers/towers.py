"""Towers of one step in a `tf.Graph`, which change the loss scale together."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import kept_with
from tf_amp.training.finiteness.scale_update import ScaleUpdate, joined
from tf_amp.training.finiteness.votes import Vote
from tf_amp.training.loss_scale.gradient_marks import scale_update_scope
from tf_amp.training.loss_scale.scale_state import ScaleState

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


def update_as_one_step(found: Sequence[Vote]) -> None:
    """Let the towers of one step change the loss scale together.

    Several optimizers may apply what comes from the same towers.
    """
    waiting = [vote for vote in found if vote.updated is not None]
    if len(waiting) < 2:
        return
    groups: list[_Group] = kept_with(waiting[0].updated.graph, _GROUPS, list)
    met = [group for group in groups if not set(waiting).isdisjoint(group.votes)]
    if any(set(waiting) <= set(group.votes) for group in met):
        return
    towers = dict.fromkeys([vote for group in met for vote in group.votes] + waiting)
    # An optimizer that waits for another must not let what they share wait for it.
    with tf.control_dependencies(None) if met else contextlib.nullcontext():
        adjusting = _update(tuple(towers))
    for vote in towers:
        for old in [group.adjusting for group in met if vote in group.votes]:
            private.wait_instead(vote.updated, old, ())
        private.wait_instead(vote.updated, vote.adjusting, adjusting)
    groups[:] = [group for group in groups if group not in met]
    groups.append(_Group(tuple(towers), adjusting))


def _update(towers: Sequence[Vote]) -> tuple[Any, ...]:
    """Add what adjusts each loss scale if one of the towers overflows."""
    by_state: dict[ScaleState, list[ScaleUpdate]] = {}
    for vote in towers:
        by_state.setdefault(vote.scale_update.state, []).append(vote.scale_update)
    with scale_update_scope():
        together = tf.reduce_all(tf.stack([vote.own for vote in towers]))
        return tuple(
            op for one in by_state.values() for op in joined(one).apply(together)
        )
