"""The state of a loss scale as a checkpoint holds it, and whose it may be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_amp.config.loss_scales.protocol import LossScale, StaticLossScale
from tf_amp.config.loss_scales.words import words_from_loss_scale
from tf_amp.errors import CheckpointMismatchError, ConfigError
from tf_amp.message_codes import Code

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
