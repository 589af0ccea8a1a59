"""The rule: no error beyond three times what casting products by hand gives.

An error is the norm of what a result is off its float32 value, over all its elements,
as root mean square over samples: one sample of a scalar is luck. Of a result that is
not floating the error is the root of the share of elements that differ, so that its
square counts them. By three times as much as two runs in float32 differ, where sums
have no fixed order, a result may be off besides.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from tests.programs import is_floating

MULTIPLE = 3.0
# Float32 alone may move a result by so many roundings, for each of the sums that lie
# behind one another as often as a random walk needs: Grappler's fused kernels sum in
# another order than those that a plan leaves or puts in their place.
_ROUNDINGS = 4
_EPSILON = 2.0**-24

Results = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Finding:
    """One result of one program, judged.

    Attributes:
      role: which result.
      error: of the program, absolute.
      by_hand: the larger error of the programs that are cast by hand.
      floor: that float32 itself may have, or has from run to run.
      scale: the norm of the result.
    """

    role: str
    error: float
    by_hand: float
    floor: float
    scale: float

    @property
    def excess(self) -> float:
        """By how much the error passes what it may be, in times; 1 at the limit."""
        return self.error / (MULTIPLE * self.by_hand + self.floor or np.inf)

    @property
    def kind(self) -> str:
        """The role without numbers and scopes: alike in programs that differ."""
        return re.sub(r"[_:]?\d+", "", self.role.rpartition("/")[2])

    @property
    def ok(self) -> bool:
        """Return whether the rule holds."""
        return self.error <= MULTIPLE * self.by_hand + self.floor

    def __str__(self) -> str:
        """Show errors relative to the result."""
        scale = self.scale or 1.0
        ratio = self.error / self.by_hand if self.by_hand else np.inf
        return (
            f"{self.role}: {self.error / scale:.2g} off, {self.by_hand / scale:.2g} "
            f"by hand, ratio {ratio:.3g}"
        )


def judge(
    role: str,
    pair: tuple[Results, Results],
    hands: Sequence[tuple[Results, Results]],
    depth: int,
    again: Results | None = None,
) -> Finding | None:
    """Judge one result over all samples.

    Args:
      role: which result.
      pair: its values per sample, and those in float32.
      hands: the same of each program that is cast by hand, and of its float32.
      depth: sums that lie behind one another in the program.
      again: its values of a second run in float32, where two runs differ.

    Returns:
      None where no sample is finite both in float32 and by hand.
    """
    sound = [
        k
        for k in range(len(pair[0]))
        if all(
            _is_finite(v[k])
            for v in (pair[1], again or pair[1], *(h for hand in hands for h in hand))
        )
    ]
    if not sound:
        return None
    expected = [pair[1][k] for k in sound]
    by_hand = max(
        _error([low[k] for k in sound], [high[k] for k in sound]) for low, high in hands
    )
    error = _error([pair[0][k] for k in sound], expected)
    unsure = MULTIPLE * _error([again[k] for k in sound], expected) if again else 0.0
    if not is_floating(expected[0]):
        elements = len(sound) * max(expected[0].size, 1)
        return _counted(role, error, by_hand, elements, unsure)
    scale = _root_mean_square([np.linalg.norm(_double(v)) for v in expected])
    floor = _ROUNDINGS * _EPSILON * scale * depth**0.5
    return Finding(role, error, by_hand, floor + unsure, scale)


def _counted(
    role: str, error: float, by_hand: float, elements: int, unsure: float
) -> Finding:
    """Judge shares of elements that differ: three times as many, and one more."""
    floor = 1.0 / elements + unsure**2
    return Finding(role, error**2, by_hand**2, floor, 1.0)


def _error(values: Results, expected: Results) -> float:
    return _root_mean_square(
        [_distance(v, e) for v, e in zip(values, expected, strict=True)]
    )


def _distance(value: np.ndarray, expected: np.ndarray) -> float:
    assert value.shape == expected.shape, "a result changed its shape"
    assert value.dtype == expected.dtype, "a result changed its dtype"
    if not is_floating(expected):
        return float(np.mean(value != expected)) ** 0.5
    if not _is_finite(value):
        return np.inf
    return float(np.linalg.norm(_double(value) - _double(expected)))


def _root_mean_square(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _double(value: np.ndarray) -> np.ndarray:
    return np.asarray(value, np.float64).ravel()


def _is_finite(value: np.ndarray) -> bool:
    return not is_floating(value) or bool(np.isfinite(_double(value)).all())
