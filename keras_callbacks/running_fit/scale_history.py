"""The loss scale by step, thinned out so that a long run takes no more room."""

from __future__ import annotations

from typing import NamedTuple

_MOST = 2000


class ScalePoint(NamedTuple):
    """A loss scale after a step.

    Attributes:
      step: counted from the begin of `fit`.
      loss_scale: what losses were multiplied by.
      skipped_steps: so far.
      overflow_origin: what overflowed first, where a step was skipped since the point
        before; empty elsewhere.
    """

    step: int
    loss_scale: float
    skipped_steps: float
    overflow_origin: str = ""


class ScaleHistory:
    """Points of one `fit`: each step at first, of long runs every second, fourth, ...

    Points at which something changed are kept as long as there are not too many.
    """

    def __init__(self) -> None:
        """Hold nothing yet, and want every step."""
        self.points: list[ScalePoint] = []
        self._stride = 1

    def wants(self, step: int) -> bool:
        """Return whether there should be a point after this step."""
        return step % self._stride == 0

    def add(self, point: ScalePoint) -> None:
        """Add a point, later than those before."""
        self.points.append(point)
        if len(self.points) > _MOST:
            self._stride *= 2
            last = len(self.points) - 1
            self.points = [
                each
                for place, each in enumerate(self.points)
                if place % 2 == 0 or place == last or self._changes_at(place)
            ][-_MOST:]

    def _changes_at(self, place: int) -> bool:
        return self.points[place][1:3] != self.points[place - 1][1:3]
