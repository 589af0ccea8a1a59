"""What one restored checkpoint says of loss scales, and which have used it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.training.loss_scale.saved_scale import (
    SavedScale,
    Values,
    given,
    mismatch,
    words_of,
)
from tf_amp.training.loss_scale.weights import Handles


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
