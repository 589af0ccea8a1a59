"""Prices from samples, and how far a profile is off where there are samples.

An op whose tensors do not stay in the cache from one node to the next is priced by what
it takes on cold data. Products and convolutions read their operands many times over,
so that what the first reading takes does not count.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grappler_pass.costs.calls import OpCall, Price
from grappler_pass.costs.device_profile import DeviceProfile
from grappler_pass.costs.errors import measured_error, with_guesses
from grappler_pass.costs.interpolation import Anchor, Place
from grappler_pass.costs.op_classes import MATRIX_PREFIXES
from grappler_pass.costs.op_work import works_of
from grappler_pass.costs.price_list import Measured, Sample
from grappler_pass.costs.profile_prices import cast_works, price_from_profile
from grappler_pass.costs.work import CACHED_BYTES, Work

# So many samples tell whether the device as a whole computes, or moves data, faster or
# slower than the profile says.
ENOUGH = 8


@dataclass(frozen=True)
class Corrections:
    """By how much a profile is off.

    Attributes:
        anchors: by class and dtype, where it was found out.
        computing: to add to the logarithm of the price of a product or a convolution
            whose class was not measured, so that it compares with those that were: the
            median of their anchors.
        moving: the same for all other ops, which wait for memory. That a machine is
            slow at one says nothing about the other.
    """

    anchors: Mapping[tuple[str, str], tuple[Anchor, ...]]
    computing: float = 0.0
    moving: float = 0.0

    def overall(self, op_class: str) -> float:
        """Return what to add where `op_class` itself was not measured."""
        return self.computing if is_computing(op_class) else self.moving


def is_computing(op_class: str) -> bool:
    """Tell whether a class reads its operands many times over."""
    return op_class.startswith(MATRIX_PREFIXES)


def measured_price(sample: Sample, call: OpCall, dtype: str) -> Price:
    """Return the price of a call that was measured at ``dtype``."""
    works = works_of(call, dtype)
    reuses = bool(works) and is_computing(works[0].op_class)
    specs = (*call.inputs, *call.outputs)
    largest = 0 if reuses else max((s.bytes_as(dtype) for s in specs), default=0)
    price = price_from_sample(sample, largest)
    return Price(price.seconds, price.source, with_guesses(price.error, call))


def price_from_sample(sample: Sample, largest_bytes: int) -> Price:
    """Return the price of an op whose largest tensor has that many bytes."""
    cold = largest_bytes > CACHED_BYTES
    seconds = sample.cold_seconds if cold else sample.seconds
    return Price(seconds, "measured", measured_error(sample.spread))


def place_of(works: tuple[Work, ...], dtype: str) -> Place:
    """Return where work lies: by its first piece, sizes below one counting as one."""
    point = tuple(math.log(max(size, 1.0)) for size in works[0].point)
    parts = tuple(work.op_class for work in works)
    return Place(works[0].op_class, dtype, point, parts)


def corrections_from_rows(
    rows: Iterable[tuple[Measured, OpCall]], profile: DeviceProfile
) -> Corrections:
    """Return by how much the profile is off at each measured row, and overall.

    Args:
        rows: with the call of each.
        profile: that predicts.
    """
    anchors: dict[tuple[str, str], list[Anchor]] = {}
    for row, call in rows:
        anchor = _anchor(row, call, profile)
        if anchor is not None:
            key = (anchor.place.op_class, anchor.place.dtype)
            anchors.setdefault(key, []).append(anchor)
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for (op_class, _), found in anchors.items():
        ratios[is_computing(op_class)] += [anchor.log_ratio for anchor in found]
    return Corrections(
        {key: tuple(found) for key, found in anchors.items()},
        computing=_typical(ratios[True]),
        moving=_typical(ratios[False]),
    )


def _typical(log_ratios: list[float]) -> float:
    return statistics.median(log_ratios) if len(log_ratios) >= ENOUGH else 0.0


def _anchor(row: Measured, call: OpCall, profile: DeviceProfile) -> Anchor | None:
    if call.op == "Cast":
        source = call.inputs[0].dtype
        works = cast_works(call.inputs[0].elements, source, row.dtype)
        dtype = f"{source}>{row.dtype}"
    else:
        works, dtype = works_of(call, row.dtype), row.dtype
    predicted = price_from_profile(profile, works, dtype)
    measured = measured_price(row.sample, call, row.dtype)
    if predicted.seconds <= 0.0 or measured.seconds <= 0.0:
        return None
    ratio = math.log(measured.seconds / predicted.seconds)
    return Anchor(place_of(works, dtype), ratio, measured.error)
