"""Whether a step outside of all functions is to be taken.

What a call for gradients returns is known for what it is. Other tensors do not show
what they were made from: they show an overflow by not being finite, or else, clipped as
they may be, the loss scale's state shows what has happened since the optimizer was
asked the last time.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp.training.finiteness.of_gradients import agreed, are_finite

_FINITE = "_tf_amp_finite"


# How calls for gradients have come out so far, by state and replica, and at first.
_NAMES = ("good_steps", "skipped_steps", "finite")
_Count = tuple[int, ...]
_Counts = dict[tuple[Any, int], _Count]
_NONE: _Count = (0, 0, 1)

# By optimizer: the counts when it was last asked.
_last_counts: weakref.WeakKeyDictionary[Any, _Counts] = weakref.WeakKeyDictionary()


def remember(result: Any, finite: Any) -> None:
    """Note on a result of a call for gradients whether all of them were finite."""
    setattr(result, _FINITE, finite)


def is_to_be_taken(parts: Sequence[Any], states: Sequence[Any], optimizer: Any) -> bool:
    """Return whether gradients come from calls that were finite, as far as is known.

    Args:
      parts: eager tensors.
      states: that the calls may have changed.
      optimizer: that is to apply them; None: something else is.
    """
    noted = [getattr(part, _FINITE, None) for part in parts]
    known = [finite for finite in noted if finite is not None]
    if not all(bool(finite) for finite in known):
        return False
    if len(known) == len(parts):
        return True
    now = {(state, _replica()): _count_of(state) for state in states}
    before = {} if optimizer is None else _last_counts.setdefault(optimizer, {})
    news = [count for key, count in now.items() if count != before.get(key, _NONE)]
    before.update(now)
    if news and not any(is_finite for *_, is_finite in news):
        return False
    return not states or bool(agreed(are_finite(parts)))


def is_to_be_written(target: Any, value: Any, states: Sequence[Any]) -> bool:
    """Return whether a variable is to take up a value, or the sum with one.

    Args:
      target: the variable's handle.
      value: an eager tensor.
      states: of loss scales.
    """
    noted = getattr(value, _FINITE, None)
    if noted is not None:
        finite = bool(noted)
    else:
        overflowed = (s.has_overflowed() for s in states if s.suits(target))
        finite = not any(map(bool, overflowed)) or bool(are_finite([value]))
    # A variable begins with what it is given.
    return finite or not tf.raw_ops.VarIsInitializedOp(resource=target)


def _count_of(state: Any) -> _Count:
    counters = state.values_in({"counters": state.read()["counters"]})
    return tuple(counters[name] for name in _NAMES)


def _replica() -> int:
    """Return the number of the replica that asks: each is to decide alike."""
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        return 0
    return int(tf.distribute.get_replica_context().replica_id_in_sync_group)
