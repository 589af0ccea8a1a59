"""Seconds of a call and of a cast on one device, from the best source at hand.

Measured for this very probe, else interpolated between measured ones of its class, else
the profile of the device, else its roofline.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from grappler_pass.costs.calls import DTYPE_BYTES, FLOATING, PRICED_ATTRS, OpCall, Price
from grappler_pass.costs.database.price_list import PriceList
from grappler_pass.costs.database.probes import Probe, cast_probe
from grappler_pass.costs.device_profile import DeviceProfile
from grappler_pass.costs.errors import with_guesses
from grappler_pass.costs.prices import (
    Corrections,
    cast_works,
    correction_at,
    corrections_from_rows,
    measured_price,
    place_of,
    price_from_profile,
    price_from_sample,
)
from grappler_pass.costs.work.op_work import works_of
from grappler_pass.costs.work.piece import Work


class _Computed(NamedTuple):
    """What follows from one version of the price list; the prices fill up."""

    version: int
    corrections: Corrections
    prices: dict[tuple[object, ...], Price]


class CostModel:
    """Price calls on the device of ``profile``; the same call costs one look-up.

    Every price is positive except that of an op that runs no kernel or moves no data
    (constants, variable reads, reshapes), which is 0.0.
    """

    def __init__(self, profile: DeviceProfile, prices: PriceList | None = None) -> None:
        """Price by what was measured, else by ``profile``.

        Nothing is computed before the first call; what is added to ``prices`` later
        counts from then on.
        """
        self.profile = profile
        self.prices = PriceList() if prices is None else prices
        self._computed = _Computed(0, Corrections({}, {}), {})
        self._calls: dict[str, OpCall | None] = {}

    def price(self, call: OpCall, dtype: str, probe: Probe | None = None) -> Price:
        """Return seconds of one execution with floating values held in ``dtype``.

        Args:
            call: op, attributes and shapes; the dtypes of its floating tensors are
                ignored, those of the others count.
            dtype: "float32", "bfloat16" or "float16".
            probe: the same call with all that its measured price hangs on.
        """
        sample = None if probe is None else self.prices.get(probe.key, dtype)
        if sample is not None:
            return measured_price(sample, call, dtype)
        computed = self._follow_prices()
        attrs = call.attrs
        named = tuple((name, attrs[name]) for name in PRICED_ATTRS if name in attrs)
        key = (call.op, dtype, named, call.inputs, call.outputs)
        try:
            known = computed.prices.get(key)
        except TypeError:  # an attribute given as a list
            return self._price(call, dtype, computed.corrections)
        if known is None:
            known = self._price(call, dtype, computed.corrections)
            computed.prices[key] = known
        return known

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return seconds of a Cast of ``elements`` values; 0.0 between equal dtypes."""
        if source == target:
            return Price(0.0, "profile")
        computed = self._follow_prices()
        key = (elements, source, target)
        known = computed.prices.get(key)
        if known is None:
            known = self._cast_price(elements, source, target, computed.corrections)
            computed.prices[key] = known
        return known

    def _price(self, call: OpCall, dtype: str, corrections: Corrections) -> Price:
        if call.op == "Cast" and call.inputs and call.outputs:
            # One of the user's own, which keeps its types.
            source, target = (spec.dtype for spec in (call.inputs[0], call.outputs[0]))
            return self.cast_price(call.outputs[0].elements, source, target)
        price = self._corrected(works_of(call, dtype), dtype, corrections)
        return price._replace(error=with_guesses(price.error, call))

    def _cast_price(
        self, elements: int, source: str, target: str, corrections: Corrections
    ) -> Price:
        if {source, target} <= FLOATING:
            key = cast_probe(elements, source, target).key
            sample = self.prices.get(key, target)
            if sample is not None:
                larger = max(DTYPE_BYTES[source], DTYPE_BYTES[target])
                return price_from_sample(sample, larger * elements)
        works = cast_works(elements, source, target)
        return self._corrected(works, f"{source}>{target}", corrections)

    def _corrected(
        self, works: tuple[Work, ...], dtype: str, corrections: Corrections
    ) -> Price:
        """Return what the profile predicts, moved to what was measured around it."""
        price = price_from_profile(self.profile, works, dtype)
        if not corrections.anchors or not works:
            return price
        op_class = works[0].op_class
        anchors = corrections.anchors.get((op_class, dtype), ())
        found = correction_at(place_of(works), anchors)
        if found is None or found.near_error >= price.error:
            overall = corrections.overall(op_class, price.source)
            seconds = price.seconds * math.exp(overall)
            return price._replace(seconds=seconds)
        seconds = price.seconds * math.exp(found.log_ratio)
        return Price(seconds, "interpolated", found.error)

    def _follow_prices(self) -> _Computed:
        """Return what was computed from the list as it is now, else begin anew."""
        computed, version = self._computed, self.prices.version
        if computed.version != version:
            computed = _Computed(version, self._current_corrections(), {})
            self._computed = computed
        return computed

    def _current_corrections(self) -> Corrections:
        # Imported here: what a profile says is known without TensorFlow.
        from grappler_pass.costs.database.probe_calls import calls_from_probes

        rows = sorted(self.prices, key=lambda row: (row.probe.key, row.dtype))
        probes = {row.probe.key: row.probe for row in rows}
        unknown = probes.keys() - self._calls.keys()
        found = calls_from_probes(probes[key] for key in sorted(unknown))
        self._calls.update((key, found.get(key)) for key in unknown)
        calls = ((row, self._calls[row.probe.key]) for row in rows)
        known = [(row, call) for row, call in calls if call is not None]
        return corrections_from_rows(known, self.profile)
