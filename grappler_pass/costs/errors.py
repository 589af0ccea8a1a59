"""How far prices are off: the standard deviation of ln(seconds), by their source."""

from __future__ import annotations

import math

from grappler_pass.costs.calls import OpCall
from grappler_pass.costs.device_profile import DeviceProfile

# Two runs of the same whole step read 0.96 to 1.04 of each other; what a median's own
# spread does not show.
RUN_TO_RUN = 0.03

# Profile measured on this very device. Between two profiles of one kind of CPU,
# two thirds of the figures moved by less than 7 %; reading between the points of a grid
# adds as much again.
CALIBRATED = 0.12

# Profile measured on another device of the kind. Between two such machines, one of them
# busy, 2,939 figures moved by 0.27.
KINDRED = 0.3

# Published rates: a kernel reaches anything between half of the peak and all of it.
PUBLISHED = 0.4

# Roofline, for a class that an otherwise measured profile lacks: in bfloat16 TanhGrad
# takes 5.9 times as long as its traffic, Sigmoid 3.8 times; most take once to twice.
ROOFLINE = 0.6

# What is smaller than anything measured, per factor e in size: of the conv classes of
# cpu-avx512-bf16, predicted without their smallest points, these are off by 0.3 at a
# quarter of a size and by 0.6 at a sixteenth.
BELOW_MEASURED = 0.22

# A size that is guessed: a batch taken for 32 is usually between 16 and 64.
GUESSED_SHAPE = 0.7

# The part of a price's variance that float32 and 16 bits have in common, since a
# machine that is slow is slow at both: between the two machines above the ratio
# of bfloat16 to float32 moved by 0.20 where independent errors would make 0.38.
COMMON_VARIANCE = 0.7


def profile_error(profile: DeviceProfile) -> float:
    """Return the error of a price that the profile has a grid for."""
    if profile.device is not None:
        return CALIBRATED
    return KINDRED if has_measured_classes(profile) else PUBLISHED


def roofline_error(profile: DeviceProfile) -> float:
    """Return the error of a price that is made of rates."""
    return ROOFLINE if has_measured_classes(profile) else PUBLISHED


def has_measured_classes(profile: DeviceProfile) -> bool:
    """Return whether the profile's own classes were measured, on whatever device."""
    return bool(profile.data.get("classes"))


def with_smallness(error: float, smallness: float) -> float:
    """Return the error of a price for that share of the smallest measured size."""
    if smallness >= 1.0:
        return error
    return math.hypot(error, BELOW_MEASURED * math.log(smallness))


def with_guesses(error: float, call: OpCall) -> float:
    """Return the error of a price for `call`, larger where a size is guessed."""
    return error if is_whole(call) else math.hypot(error, GUESSED_SHAPE)


def is_whole(call: OpCall) -> bool:
    """Return whether no size of ``call`` is guessed."""
    specs = (*call.inputs, *call.outputs)
    return all(spec.shape is not None and None not in spec.shape for spec in specs)
