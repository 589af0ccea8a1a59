"""Seconds that a profile alone predicts for the pieces of a call."""

from __future__ import annotations

import math
from collections.abc import Iterable

from grappler_pass.costs.calls import DTYPE_BYTES, Price
from grappler_pass.costs.device_profile import DeviceProfile
from grappler_pass.costs.errors import profile_error, roofline_error, with_smallness
from grappler_pass.costs.grid import Grid
from grappler_pass.costs.work import Work


def price_from_profile(
    profile: DeviceProfile, works: Iterable[Work], dtype: str
) -> Price:
    """Return the sum of the pieces, whose errors count as one.

    Args:
        profile: of the device.
        works: the pieces.
        dtype: as the profile names it, "float32>bfloat16" for casts.
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
    float32 = profile.grid(work.op_class, "float32")
    if grid is not None:
        smallness = grid.smallness(work.point)
        error = with_smallness(profile_error(profile), smallness)
        error = math.hypot(error, work.unlike)
        if float32 is None or smallness == 1.0:
            return Price(_on_grid(work, grid), "profile", error)
        seconds = _on_grid(work, float32) * _ratio(grid, float32, work)
        return Price(seconds, "profile", error)
    seconds = profile.roofline.seconds(work, dtype)
    if float32 is not None:
        # Comparable with the measured float32, if only in proportion.
        here = _on_grid(work, float32)
        seconds = here * seconds / profile.roofline.seconds(work, "float32")
    return Price(seconds, "roofline", roofline_error(profile))


def _ratio(low: Grid, float32: Grid, work: Work) -> float:
    """Return 16 bits over float32 below the smallest measured size.

    What they lose there they lose on anything smaller; what they gain goes with the
    size. In the profile of a CPU with avx512_bf16, its smallest points left out, the
    root of the size comes nearest to them.
    """
    edge = low.at_least_first(work.point)
    ratio = low.seconds(edge) / float32.seconds(edge)
    return ratio ** math.sqrt(low.smallness(work.point)) if ratio < 1.0 else ratio


def _on_grid(work: Work, grid: Grid) -> float:
    return work.times * work.scale * grid.seconds(work.point)
