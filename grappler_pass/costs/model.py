"""Seconds of a call and of a cast on one device, from the best source at hand."""

from __future__ import annotations

from grappler_pass.costs.calls import DTYPE_BYTES, PRICED_ATTRS, OpCall, Price
from grappler_pass.costs.device_profile import DeviceProfile
from grappler_pass.costs.op_work import works_of
from grappler_pass.costs.work import Work


class CostModel:
    """Price calls on the device of ``profile``; the same call costs one look-up.

    Every price is positive except that of an op that runs no kernel or moves no data
    (constants, variable reads, reshapes), which is 0.0.
    """

    def __init__(self, profile: DeviceProfile) -> None:
        """Price by ``profile``; nothing is computed before the first call."""
        self.profile = profile
        self._prices: dict[tuple[object, ...], Price] = {}
        self._casts: dict[tuple[int, str, str], Price] = {}

    def price(self, call: OpCall, dtype: str) -> Price:
        """Return seconds of one execution with floating values held in ``dtype``.

        Args:
            call: op, attributes and shapes; the dtypes of its floating tensors are
                ignored, those of the others count.
            dtype: "float32", "bfloat16" or "float16".
        """
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
