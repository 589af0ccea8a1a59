"""Prices know their source and their error."""

from __future__ import annotations

import dataclasses
import math

import pytest

from grappler_pass.costs import CostModel, DeviceKey, DeviceProfile, OpCall, TensorSpec
from grappler_pass.costs.model import (
    CALIBRATED,
    GUESSED_SHAPE,
    KINDRED,
    PUBLISHED,
    ROOFLINE,
)

SHIPPED = DeviceProfile.load("cpu-avx512-bf16")
KEY = DeviceKey("a CPU", frozenset({"avx2"}), 2, onednn=True)
OWN = dataclasses.replace(SHIPPED, device=str(KEY))
EXTENDED = DeviceProfile.from_json(
    {**SHIPPED.data, "name": "sheet", "extends": SHIPPED.name, "classes": {}}
)


def tanh(*shape: int | None) -> OpCall:
    spec = TensorSpec(shape, "float32")
    return OpCall("Tanh", {}, (spec,), (spec,))


@pytest.mark.parametrize(
    ("profile", "source", "error"),
    [
        (OWN, "profile", CALIBRATED),
        (SHIPPED, "profile", KINDRED),
        (EXTENDED, "profile", PUBLISHED),
        (DeviceProfile.load("v100"), "roofline", PUBLISHED),
    ],
    ids=["own", "shipped", "extended", "data sheet"],
)
def test_a_profile_is_as_sure_as_it_is_near(
    profile: DeviceProfile, source: str, error: float
) -> None:
    price = CostModel(profile).price(tanh(256, 256), "bfloat16")
    assert price.source == source
    assert price.error == pytest.approx(error)


def test_a_class_that_a_measured_profile_lacks_is_least_sure() -> None:
    spec = TensorSpec((64, 64), "float32")
    price = CostModel(OWN).price(OpCall("Digamma", {}, (spec,), (spec,)), "float32")
    assert (price.source, price.error) == ("roofline", ROOFLINE)


def test_a_guessed_size_adds_to_the_error() -> None:
    price = CostModel(OWN).price(tanh(None, 256), "bfloat16")
    assert price.error == pytest.approx(math.hypot(CALIBRATED, GUESSED_SHAPE))
