"""Seconds of a call and of a cast on one device, from the best source at hand."""

from __future__ import annotations

from grappler_pass.costs.calls import DTYPE_BYTES, PRICED_ATTRS, OpCall, Price
from grappler_pass.costs.device_profile import DeviceProfile
from grappler_pass.costs.errors import measured_error
from grappler_pass.costs.op_work import works_of
from grappler_pass.costs.price_list import PriceList
from grappler_pass.costs.probes import Probe
from grappler_pass.costs.work import Work


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
        self.prices = prices
        self._prices: dict[tuple[object, ...], Price] = {}
        self._casts: dict[tuple[int, str, str], Price] = {}

    def price(self, call: OpCall, dtype: str, probe: Probe | None = None) -> Price:
        """Return seconds of one execution with floating values held in ``dtype``.

        Args:
            call: op, attributes and shapes; the dtypes of its floating tensors are
                ignored, those of the others count.
            dtype: "float32", "bfloat16" or "float16".
            probe: the same call with all that its measured price hangs on.
        """
        measured = self._measured(probe, dtype)
        if measured is not None:
            return measured
        attrs = call.attrs
        named = tuple(attrs[name] for name in PRICED_ATTRS if name in attrs)
        key = (call.op, dtype, named, call.inputs, call.outputs)
        try:
            known = self._prices.get(key)
        except TypeError:  # an attribute given as a list
            return self._price(call, dtype)
        if known is None:
            known = self._prices[key] = self._price(call, dtype)
        return known

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return seconds of a Cast of ``elements`` values; 0.0 between equal dtypes."""
        if source == target:
            return Price(0.0, "profile")
        key = (elements, source, target)
        known = self._casts.get(key)
        if known is None:
            moved = elements * sum(DTYPE_BYTES.get(end, 4) for end in key[1:])
            work = Work("Cast", (float(max(elements, 1)),), 0.0, float(moved))
            known = self._casts[key] = self._seconds(work, f"{source}>{target}")
        return known

    def _measured(self, probe: Probe | None, dtype: str) -> Price | None:
        sample = (
            self.prices.get(probe.key, dtype)
            if probe is not None and self.prices is not None
            else None
        )
        if sample is None:
            return None
        return Price(sample.seconds, "measured", measured_error(sample.spread))

    def _price(self, call: OpCall, dtype: str) -> Price:
        if call.op == "Cast":
            return self._cast(call, dtype)
        parts = [self._seconds(work, dtype) for work in works_of(call, dtype)]
        measured = all(part.source == "profile" for part in parts)
        return Price(
            sum(part.seconds for part in parts), "profile" if measured else "roofline"
        )

    def _cast(self, call: OpCall, dtype: str) -> Price:
        """Price a cast of the user's own, one end of which may be held in ``dtype``."""
        source, target = (spec.dtype for spec in (call.inputs[0], call.outputs[0]))
        return self.cast_price(call.outputs[0].elements, source, target)

    def _seconds(self, work: Work, dtype: str) -> Price:
        grid = self.profile.grid(work.op_class, dtype)
        if grid is not None:
            return Price(work.scale * grid.seconds(work.point), "profile")
        roofline = self.profile.roofline
        seconds = roofline.seconds(work, dtype)
        grid = self.profile.grid(work.op_class, "float32")
        if grid is not None:
            # Comparable with the measured float32, if only in proportion.
            here = work.scale * grid.seconds(work.point)
            seconds = here * seconds / roofline.seconds(work, "float32")
        return Price(seconds, "roofline")
