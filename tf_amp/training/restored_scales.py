"""What restored checkpoints say of loss scales, until these take it up.

It goes with the weights that were restored: a loss scale takes it up as soon as it
scales gradients of one of these, which may be the first it scales at all. Whatever else
is trained in the process does not notice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grappler_pass.fork_safety import renewed_lock
from tf_amp.config.loss_scales.protocol import LossScale, StaticLossScale
from tf_amp.config.loss_scales.words import words_from_loss_scale
from tf_amp.errors import CheckpointMismatchError, ConfigError
from tf_amp.message_codes import Code
from tf_amp.training.weights import Handles

# More than a program restores before it begins to train.
_MOST = 32


@dataclasses.dataclass(eq=False)
class Restored:
    """What one checkpoint holds of loss scales.

    Attributes:
      path: of the checkpoint, for messages.
      scales: in the order in which they were first used; none if it holds none.
      weights: returns what was restored with them, as far as there is any by now; None
        once it is gone.
      taken: the places of those that loss scales go on from, by identity of the loss
        scale, which is kept alive; it may have one more state, under another strategy.
    """

    path: str
    scales: tuple[SavedScale, ...]
    weights: Callable[[], Handles | None]
    taken: dict[int, tuple[LossScale, int]] = dataclasses.field(default_factory=dict)

    def take(
        self, loss_scale: LossScale, fresh: Values, *, only_equal: bool = False
    ) -> Values | None:
        """Return the saved state of a loss scale, which is that of no other then.

        Of an equal one it is even if one that is only of its class came before.
        """
        if id(loss_scale) not in self.taken:
            place = self._place_for(loss_scale, fresh, only_equal)
            if place is None:
                return None
            self.taken[id(loss_scale)] = (loss_scale, place)
        saved = self.scales[self.taken[id(loss_scale)][1]]
        return {**saved.values, **given(loss_scale)}

    def left(self) -> tuple[SavedScale, ...]:
        """Return what no loss scale has taken."""
        places = {place for _, place in self.taken.values()}
        return tuple(s for i, s in enumerate(self.scales) if i not in places)

    def refuse(self, loss_scale: LossScale) -> None:
        """Raise CheckpointMismatchError if what is left is of other loss scales."""
        for saved in self.left():
            raise mismatch(self.path, saved, loss_scale)

    def shares(self, weights: Handles) -> bool:
        """Return whether some of these weights were restored with it."""
        return not weights.keys().isdisjoint(self.weights() or ())

    def may_share(self, weights: Handles) -> bool:
        """Return whether that may be so, for all that is known of either."""
        own = self.weights()
        known = bool(own and weights)
        return own is not None and (not known or self.shares(weights))

    def _place_for(
        self, loss_scale: LossScale, fresh: Values, only_equal: bool
    ) -> int | None:
        alike = [i for i, s in enumerate(self.scales) if s.fits(loss_scale, fresh)]
        words = [saved.words for saved in self.scales]
        taken = {place for _, place in self.taken.values()}
        by_equals = {i for one, i in self.taken.values() if words_of(one) == words[i]}
        own = words_of(loss_scale)
        equal = [i for i in alike if words[i] == own and i not in by_equals]
        others = [] if only_equal else [i for i in alike if i not in taken]
        return next(iter([*equal, *others]), None)


# Until gradients of those weights are scaled, under whatever settings.
_restored: list[Restored] = []
_lock = renewed_lock()


def wait(
    scales: tuple[SavedScale, ...],
    path: str,
    weights: Callable[[], Handles | None] = dict,
) -> Restored:
    """Let loss scales go on as saved once they scale gradients of restored weights.

    What was restored to the same weights before waits in vain from now on, unless
    nothing is known now.

    Args:
      scales: in the order in which they were first used; none if the checkpoint holds
        none.
      path: of the checkpoint, for messages.
      weights: returns those restored with it; where there are none, any will do.
    """
    restored = Restored(path, scales, weights)
    now = weights() or {}
    with _lock:
        alive = [one for one in _restored if one.weights() is not None]
        same = [one for one in alive if one.shares(now)]
        others = [one for one in alive if one not in same]
        latest = same if same and not scales else [restored]
        _restored[:] = [*others, *latest][-_MOST:]
    return restored


def still_waiting(weights: Handles | None = None) -> tuple[SavedScale, ...]:
    """Return what was restored, with some weights if given, and has not been taken."""
    with _lock:
        concerned = [one for one in _restored if one.may_share(weights or {})]
        return tuple(saved for one in concerned for saved in one.left())


def resumed(
    loss_scale: LossScale, initial: Values, weights: Handles | None = None
) -> Values:
    """Return the state that a loss scale begins with: as saved, or else `initial`.

    Args:
      loss_scale: that has no state yet.
      initial: what a new training begins with.
      weights: that it is to scale gradients of, as far as is known.

    Raises:
      CheckpointMismatchError: saved was the state of another loss scale.
    """
    with _lock:
        known = weights or {}
        restored = _latest_with(known) or next(
            (one for one in reversed(_restored) if one.may_share(known)), None
        )
        if restored is None:
            return initial
        found = restored.take(loss_scale, initial)
    if found is None:
        restored.refuse(loss_scale)
        say_fresh(loss_scale, initial, restored.path)
    return found or initial


def resumed_with(
    weights: Handles, loss_scale: LossScale, fresh: Values
) -> Values | None:
    """Return what a state goes back to that meets weights for the first time, if so.

    Raises:
      CheckpointMismatchError: with these weights another loss scale was saved.
    """
    with _lock:
        restored = _latest_with(weights)
        if restored is None or id(loss_scale) in restored.taken:
            return None
        found = restored.take(loss_scale, fresh)
    if found is None:
        restored.refuse(loss_scale)
    return found


def shared_out(
    restored: Restored, states: Sequence[Any], in_use: Any
) -> list[tuple[Any, Values]]:
    """Return states that exist, and the values that each of them goes back to.

    Args:
      restored: what was saved.
      states: of the training that was restored, in the order in which they were made.
      in_use: the state that gradients were last scaled by.

    Raises:
      CheckpointMismatchError: nothing of what was saved is for the state in use.
    """
    with _lock:
        for state in states:
            restored.take(state.loss_scale, state.fresh, only_equal=True)
        taking = sorted(states, key=lambda state: state is not in_use)
        found = [(s, restored.take(s.loss_scale, s.fresh)) for s in taking]
    for state, values in found:
        if state is in_use and values is None:
            restored.refuse(state.loss_scale)
    return [(state, values) for state, values in found if values is not None]


def _latest_with(weights: Handles) -> Restored | None:
    """Return what was last restored together with one of some weights."""
    return next((one for one in reversed(_restored) if one.shares(weights)), None)


Values = Mapping[str, float | int]


@dataclasses.dataclass(frozen=True)
class SavedScale:
    """The state of one loss scale as it was saved.

    Attributes:
      kind: name of the loss scale's class.
      words: the loss scale in words, for people and to distinguish two of a class.
      values: its state by name.
    """

    kind: str
    words: str
    values: Values

    def fits(self, loss_scale: LossScale, fresh: Values) -> bool:
        """Return whether a loss scale that begins with `fresh` can go on from it."""
        is_alike = self.kind == kind_of(loss_scale)
        return is_alike and self.values.keys() == fresh.keys()


def saved_scale(loss_scale: LossScale, values: Values) -> SavedScale:
    """Return a state as it is to be saved."""
    return SavedScale(kind_of(loss_scale), words_of(loss_scale), dict(values))


def is_usable(scale: float) -> bool:
    """Return whether gradients can be multiplied by a scale, and divided again."""
    return 2.0**-126 <= scale < 2.0**128


def mismatch(
    path: str, saved: SavedScale, wanted: LossScale
) -> CheckpointMismatchError:
    """Return the error that names two loss scales."""
    return CheckpointMismatchError(
        f"The checkpoint {path} holds the state of {saved.kind} "
        f"({', '.join((saved.words, *saved.values))}), and this program scales losses "
        f"with {kind_of(wanted)} ({words_of(wanted)}). Resume with the same loss "
        "scale; or, to go on with another one, restore and save once with mixed "
        "precision off, which drops the state."
    )


def kind_of(loss_scale: LossScale) -> str:
    """Return what distinguishes loss scales whose states have nothing in common."""
    return type(loss_scale).__name__


def given(loss_scale: LossScale) -> Values:
    """Return what the program has chosen, whatever was saved."""
    is_constant = isinstance(loss_scale, StaticLossScale) and (
        type(loss_scale).adjust is LossScale.adjust
    )
    return loss_scale.initial_state() if is_constant else {}


def say_fresh(loss_scale: LossScale, initial: Values, path: str) -> None:
    """Say that a checkpoint holds no state, so that a loss scale starts anew."""
    Code.NO_SCALE_IN_CHECKPOINT.warn(
        "The checkpoint %s holds no state of a loss scale: %s starts at %g.",
        path,
        kind_of(loss_scale),
        initial["scale"],
    )


def words_of(loss_scale: LossScale) -> str:
    """Return the words of a loss scale, where it has some."""
    try:
        return words_from_loss_scale(loss_scale)
    except ConfigError:
        return "the program's own"
