"""Each shipped profile drives a plan of the same real training step."""

from __future__ import annotations

import pytest

from grappler_pass.costs import DeviceProfile
from tests.golden_plans import golden_path, plan_for, text_from_plan


@pytest.mark.parametrize("profile_name", DeviceProfile.names())
def test_the_plan_for_a_shipped_profile_is_as_reviewed(profile_name: str) -> None:
    plan = plan_for(profile_name)
    assert text_from_plan(plan) == golden_path(profile_name).read_text(), (
        "review the new plan, then write it with `python -m tests.golden_plans`"
    )


@pytest.mark.parametrize("name", ["cpu-generic", "cpu-intel-avx512-bf16"])
def test_no_16_bit_plan_is_made_where_products_do_not_gain(name: str) -> None:
    assert plan_for(name).is_empty


@pytest.mark.parametrize("profile_name", ["v100", "t4", "a100", "h100", "h200"])
def test_products_go_low_where_tensor_cores_are(profile_name: str) -> None:
    low = {row.op for row in plan_for(profile_name).decisions if row.is_low}
    assert low & {"Conv2D", "_FusedConv2D", "Conv2DBackpropFilter"}
