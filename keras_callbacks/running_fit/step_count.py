"""How many steps a `fit` has taken, by the batches that Keras tells of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def steps_up_to(batch: int, params: Mapping[str, Any] | None) -> int:
    """Return how many steps of an epoch there were once a batch has ended.

    Args:
      batch: from 0 on; the last of several in one call may be none in fact.
      params: what Keras tells of the run.
    """
    in_epoch = (params or {}).get("steps")
    return batch + 1 if in_epoch is None else min(batch + 1, int(in_epoch))


class StepCount:
    """Counts the steps of one `fit` through all its epochs.

    Attributes:
      steps: so far.
    """

    def __init__(self) -> None:
        """Begin at none."""
        self.steps = 0
        self._before = 0

    def begin_epoch(self) -> None:
        """Count on from the epochs before."""
        self._before = self.steps

    def end_batch(self, batch: int, params: Mapping[str, Any] | None) -> None:
        """Count a batch of the epoch; arguments as for `steps_up_to`."""
        self.steps = self._before + steps_up_to(batch, params)
