"""Prices of what is smaller than anything a profile holds."""

import itertools
import math
import statistics

import pytest

from grappler_pass.costs import DeviceProfile
from grappler_pass.costs.model import KINDRED, price_from_profile
from grappler_pass.costs.op_work import works_of
from tests.op_calls import MEASURED, convolution, ratio, seconds

_PROFILE = DeviceProfile.load("cpu-avx512-bf16")
_CLASSES = _PROFILE.data["classes"]
_LAYERS = [name for name in _CLASSES if name.startswith(("conv.", "depthwise."))]


def _without_first(position):
    """Return the profile without the first size of an axis, and what it then lacks."""
    left, missing = {}, []
    for name in _LAYERS:
        axes, seconds = _CLASSES[name]["axes"], _CLASSES[name]["seconds"]
        if position >= len(axes) or len(list(axes.values())[position]) < 3:
            continue
        axis = list(axes)[position]
        points = list(itertools.product(*axes.values()))
        kept = [point[position] != axes[axis][0] for point in points]
        left[name] = {
            "axes": {**axes, axis: axes[axis][1:]},
            "seconds": {
                dtype: list(itertools.compress(values, kept))
                for dtype, values in seconds.items()
            },
        }
        missing += [
            (name, point, {dtype: values[at] for dtype, values in seconds.items()})
            for at, point in enumerate(points)
            if not kept[at]
        ]
    return DeviceProfile.from_json({**_PROFILE.data, "classes": left}), missing


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_smallest_layers_of_a_profile_follow_from_the_next(position, dtype):
    profile, missing = _without_first(position)
    off = [
        math.log(truth[dtype] / profile.extended_grid(name, dtype).seconds(point))
        for name, point, truth in missing
        if name.startswith("conv.")
    ]
    assert len(off) > 100
    # Of 16 bits not all of the gain is believed.
    assert abs(statistics.median(off)) < (0.1 if dtype == "float32" else 0.2)
    assert statistics.median(map(abs, off)) < 0.5


def test_three_channels_take_less_than_sixteen_and_gain_less():
    def call(channels):
        return convolution("Conv2D", 16, 64, channels, 16)

    assert seconds(call(3), "float32") < 0.5 * seconds(call(16), "float32")
    assert 0.6 < ratio(call(3)) < 1.0
    assert ratio(call(16)) < 0.6


def test_what_is_smaller_is_less_sure():
    def error(channels):
        call = convolution("Conv2D", 16, 64, channels, 64)
        works = works_of(call, "bfloat16")
        return price_from_profile(_PROFILE, works, "bfloat16").error

    assert error(16) == error(64) == pytest.approx(KINDRED)
    assert error(3) > error(8) > KINDRED


def test_nothing_takes_less_than_the_smallest_call_of_its_class():
    grid = MEASURED.profile.extended_grid("conv.forward.1.s1", "float32")
    assert grid.seconds((1.0, 1.0, 1.0)) == pytest.approx(
        min(_CLASSES["conv.forward.1.s1"]["seconds"]["float32"])
    )
