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


@pytest.mark.parametrize(
    ("profile", "op", "shape", "source", "error"),
    [
        (OWN, "Tanh", (256, 256), "profile", CALIBRATED),
        (SHIPPED, "Tanh", (256, 256), "profile", KINDRED),
        (EXTENDED, "Tanh", (256, 256), "profile", PUBLISHED),
        (DeviceProfile.load("v100"), "Tanh", (256, 256), "roofline", PUBLISHED),
        # A class that a measured profile lacks is least sure.
        (OWN, "Digamma", (64, 64), "roofline", ROOFLINE),
        (OWN, "Tanh", (None, 256), "profile", math.hypot(CALIBRATED, GUESSED_SHAPE)),
    ],
    ids=["own", "shipped", "extended", "data sheet", "no class", "guessed size"],
)
def test_a_profile_is_as_sure_as_it_is_near(
    profile: DeviceProfile,
    op: str,
    shape: tuple[int | None, ...],
    source: str,
    error: float,
) -> None:
    spec = TensorSpec(shape, "float32")
    price = CostModel(profile).price(OpCall(op, {}, (spec,), (spec,)), "bfloat16")
    assert price.source == source
    assert price.error == pytest.approx(error)
