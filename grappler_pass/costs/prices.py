"""Prices of pieces of work by a profile: from its grids, else from its roofline."""

from __future__ import annotations

from collections.abc import Iterable

from grappler_pass.costs.calls import DTYPE_BYTES, Price
from grappler_pass.costs.device_profile import DeviceProfile
from grappler_pass.costs.errors import (
    profile_error,
    roofline_error,
    with_smallness,
)
from grappler_pass.costs.work.piece import Work


def price_from_profile(
    profile: DeviceProfile, works: Iterable[Work], dtype: str
) -> Price:
    """Return the sum of the pieces, whose errors count as one.

    The dtype is as the profile names it: "float32>bfloat16" for casts.
    """
    parts = [_price(profile, work, dtype) for work in works]
    measured = all(part.source == "profile" for part in parts)
    seconds = sum(part.seconds for part in parts)
    weighted = sum(part.seconds * part.error for part in parts)
    return Price(
        seconds,
        "profile" if measured else "roofline",
        weighted / seconds if seconds > 0.0 else 0.0,
    )


def cast_works(elements: int, source: str, target: str) -> tuple[Work, ...]:
    """Return the work of casting that many values."""
    moved = elements * sum(DTYPE_BYTES.get(end, 4) for end in (source, target))
    return (Work("Cast", (float(max(elements, 1)),), 0.0, float(moved)),)


def _price(profile: DeviceProfile, work: Work, dtype: str) -> Price:
    grid = profile.grid(work.op_class, dtype)
    if grid is not None:
        error = with_smallness(profile_error(profile), grid.smallness(work.point))
        return Price(_on_grid(profile, work, dtype), "profile", error)
    seconds = profile.roofline.seconds(work, dtype)
    if profile.grid(work.op_class, "float32") is not None:
        # Comparable with the measured float32, if only in proportion.
        here = _on_grid(profile, work, "float32")
        seconds = here * seconds / profile.roofline.seconds(work, "float32")
    return Price(seconds, "roofline", roofline_error(profile))


def _on_grid(profile: DeviceProfile, work: Work, dtype: str) -> float:
    grid = profile.extended_grid(work.op_class, dtype)
    assert grid is not None, "the caller has seen one"
    return work.times * work.scale * grid.seconds(work.point)
