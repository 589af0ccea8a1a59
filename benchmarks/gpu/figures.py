"""What the processes of a job have measured, as it is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from benchmarks.gpu.jobs import BASE, VARIANTS, Job
from tf_amp.tools.bench.record import SpeedUp, largest_error, speed_up_of


@dataclasses.dataclass(frozen=True)
class FirstSteps:
    """What a process says of its first steps.

    Attributes:
      device: its name.
      dtype: that the variant computes in, "float32" or one of 16 bits.
      first_step_seconds: tracing and compiling included.
      losses: of the first steps; None where one is not finite.
      peak_bytes: most of the device's memory that a later step held at once.
      predicted: seconds of the step as tf-amp traces it, in float32 and as planned;
        None without tf-amp.
    """

    device: str
    dtype: str
    first_step_seconds: float
    losses: tuple[float | None, ...]
    peak_bytes: int
    predicted: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Figures:
    """One variant of a job.

    Attributes:
      variant: its name.
      first: None where the process failed before its first steps were done.
      seconds: of a step, round by round.
      note: what tf-amp said on stderr, its first line.
      failure: why it ended early; "" otherwise.
    """

    variant: str
    first: FirstSteps | None = None
    seconds: tuple[float, ...] = ()
    note: str = ""
    failure: str = ""

    @property
    def title(self) -> str:
        """Return the variant for readers, with its type where it is known."""
        title = VARIANTS[self.variant].title
        is_typed = self.first is not None and self.variant != BASE
        return f"{title}, {self.first.dtype}" if is_typed else title


@dataclasses.dataclass(frozen=True)
class Measured:
    """All variants of a job, which were timed in turns."""

    job: Job
    figures: tuple[Figures, ...]

    @property
    def base(self) -> Figures:
        """Float32, which the others are held against."""
        return next(each for each in self.figures if each.variant == BASE)

    def speed_up(self, figures: Figures) -> SpeedUp | None:
        """Return how many times as fast as float32 a variant is; None without both."""
        return speed_up_of(_by_round(figures.seconds), _by_round(self.base.seconds))

    def losses_error(self, figures: Figures) -> float | None:
        """Return the distance of the first losses to float32's, relative to them."""
        if figures.first is None or self.base.first is None:
            return None
        return largest_error({0: figures.first.losses}, {0: self.base.first.losses})


def _by_round(seconds: Sequence[float]) -> dict[int, float]:
    return dict(enumerate(seconds))
