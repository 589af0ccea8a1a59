"""What pairs of times say of which way is faster, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tf_amp.compare.alternation import FEWEST_PAIRS, MOST_PAIRS, Verdict


def _comparison(ratios: list[float]) -> Verdict:
    return Verdict(tuple((0.1 * ratio, 0.1) for ratio in ratios))


@pytest.mark.parametrize(
    ("ratios", "faster"),
    [
        ([1.6, 1.5, 1.7] * 2, True),
        ([0.5, 0.6, 0.55] * 2, False),
        ([1.0, 1.01, 0.99, 1.0, 1.005, 0.995] * 2, False),
        ([1.03, 0.97, 1.2, 0.9, 1.1, 1.0], None),
        ([5.0] * (FEWEST_PAIRS - 1), None),
        ([5.0, 0.2, 1.0, 1.3, 0.4, 2.0], None),
        # What is clear is clear after three.
        ([1.31, 1.3, 1.29], True),
        ([0.8, 0.79, 0.81], False),
        ([1.05, 1.06, 1.04], None),
    ],
)
def test_faster_is_what_is_beyond_noise(
    ratios: list[float], faster: bool | None
) -> None:
    assert _comparison(ratios).is_faster is faster


def test_one_disturbed_pair_changes_nothing() -> None:
    calm = [1.5, 1.52, 1.48, 1.51, 1.5]
    assert _comparison([*calm, 40.0]).ratio == pytest.approx(1.5, rel=0.01)


def test_what_stays_open_ends_in_float32() -> None:
    ratios = [1.3, 1.0, 0.8, 1.02] * (MOST_PAIRS // 4)
    assert _comparison(ratios[:-1]).is_faster is None
    assert _comparison(ratios).is_faster is False


def _decided(gain: float, noise: float, random: np.random.Generator) -> bool:
    """Return the verdict on runs that scatter, one of twenty of them widely."""

    def disturbance() -> float:
        tail = abs(random.normal(0.0, 0.5)) if random.random() < 0.05 else 0.0
        return math.exp(random.normal(0.0, noise) + tail)

    pairs: list[tuple[float, float]] = []
    while (verdict := Verdict(tuple(pairs)).is_faster) is None:
        pairs.append((math.exp(gain) * disturbance(), disturbance()))
    return verdict


@pytest.mark.parametrize(
    ("gain", "least", "most"), [(0.0, 0.0, 0.06), (-0.05, 0.0, 0.04), (0.4, 0.95, 1.0)]
)
@pytest.mark.parametrize("noise", [0.02, 0.15])
def test_the_test_is_as_often_wrong_as_it_says(
    noise: float, gain: float, least: float, most: float
) -> None:
    random = np.random.default_rng(1)
    verdicts = [_decided(gain, noise, random) for _ in range(150)]
    assert least <= np.mean(verdicts) <= most
