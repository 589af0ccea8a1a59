"""What a restored checkpoint says of loss scales, until their states are made.

States are made when gradients are first traced, mostly after a checkpoint was restored:
what was saved waits here and becomes the state to begin with.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping

from absl import logging

from tf_amp.errors import CheckpointMismatch, ConfigError
from tf_amp.loss_scaling.constant import StaticLossScale
from tf_amp.loss_scaling.protocol import LossScale
from tf_amp.loss_scaling.words import words_from_loss_scale

Values = Mapping[str, float | int]


@dataclasses.dataclass(frozen=True)
class SavedScale:
    """The state of one loss scale as it was saved.

    Attributes:
      kind: name of the loss scale's class.
      words: the loss scale in words, for people and to tell two of a class apart.
      values: its state by name.
    """

    kind: str
    words: str
    values: Values


@dataclasses.dataclass
class _Waiting:
    """What was restored last.

    Attributes:
      path: of the checkpoint; None: nothing was restored.
      scales: that no loss scale has taken yet.
      taken: by identity of the loss scale, which is kept alive; it may have one more
        state, under another strategy.
    """

    path: str | None = None
    scales: tuple[SavedScale, ...] = ()
    taken: dict[int, tuple[LossScale, SavedScale]] = dataclasses.field(
        default_factory=dict
    )


_waiting = _Waiting()
_lock = threading.Lock()


def saved_scale(loss_scale: LossScale, values: Values) -> SavedScale:
    """Return a state as it is to be saved."""
    return SavedScale(kind_of(loss_scale), _words(loss_scale), dict(values))


def wait(scales: tuple[SavedScale, ...], path: str) -> None:
    """Let states made from now on begin as saved; in vain waits what was before.

    Args:
      scales: in the order in which they were first used; none if the checkpoint holds
        none.
      path: of the checkpoint, for messages.
    """
    with _lock:
        _waiting.path, _waiting.scales = path, scales
        _waiting.taken = {}


def still_waiting() -> tuple[SavedScale, ...]:
    """Return what was restored and has not been taken."""
    return _waiting.scales


def resumed(loss_scale: LossScale, initial: Values) -> Values:
    """Return the state that a loss scale begins with: as saved, or else `initial`.

    Raises:
      CheckpointMismatch: saved was the state of another loss scale.
    """
    with _lock:
        path, scales = _waiting.path, _waiting.scales
        if path is None:
            return initial
        found = _take(loss_scale)
    if found is None and not scales:
        say_fresh(loss_scale, initial, path)
        return initial
    if found is None or found.values.keys() != initial.keys():
        raise mismatch(path, found or scales[0], loss_scale)
    return {**found.values, **given(loss_scale)}


def mismatch(path: str, saved: SavedScale, wanted: LossScale) -> CheckpointMismatch:
    """Return the error that names two loss scales."""
    return CheckpointMismatch(
        f"The checkpoint {path} holds the state of {saved.kind} "
        f"({', '.join((saved.words, *saved.values))}), and this program scales losses "
        f"with {kind_of(wanted)} ({_words(wanted)}). Resume with the same loss scale; "
        "or, to go on with another one, restore and save once with mixed precision "
        "off, which drops the state."
    )


def kind_of(loss_scale: LossScale) -> str:
    """Return what tells loss scales apart whose states have nothing in common."""
    return type(loss_scale).__name__


def given(loss_scale: LossScale) -> Values:
    """Return what the program has chosen, whatever was saved."""
    is_constant = isinstance(loss_scale, StaticLossScale) and (
        type(loss_scale).adjust is LossScale.adjust
    )
    return loss_scale.initial_state() if is_constant else {}


def say_fresh(loss_scale: LossScale, initial: Values, path: str) -> None:
    """Say that a checkpoint holds no state, so that a loss scale starts anew."""
    logging.warning(
        "The checkpoint %s holds no state of a loss scale: %s starts at %g.",
        path,
        kind_of(loss_scale),
        initial["scale"],
    )


def _take(loss_scale: LossScale) -> SavedScale | None:
    """Return the saved state of a loss scale, which is that of no other then."""
    if id(loss_scale) in _waiting.taken:
        return _waiting.taken[id(loss_scale)][1]
    scales = _waiting.scales
    found = _fitting(loss_scale, scales)
    if found is not None:
        _waiting.taken[id(loss_scale)] = (loss_scale, found)
        _waiting.scales = tuple(scale for scale in scales if scale is not found)
    return found


def _fitting(
    loss_scale: LossScale, scales: tuple[SavedScale, ...]
) -> SavedScale | None:
    """Return the first saved state of an equal loss scale, else of its class."""
    alike = [scale for scale in scales if scale.kind == kind_of(loss_scale)]
    equal = [scale for scale in alike if scale.words == _words(loss_scale)]
    return next(iter(equal or alike), None)


def _words(loss_scale: LossScale) -> str:
    try:
        return words_from_loss_scale(loss_scale)
    except ConfigError:
        return "the program's own"
