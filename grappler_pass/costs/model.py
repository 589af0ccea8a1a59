"""Seconds of a call and of a cast on one device, from the best source available.

The profile of the device, else its roofline, both corrected by what steps have taught.
"""

from __future__ import annotations

from collections.abc import Sequence

from grappler_pass.costs.calls import PRICED_ATTRS, OpCall, Price
from grappler_pass.costs.device_profile import DeviceProfile
from grappler_pass.costs.errors import is_whole, with_guesses
from grappler_pass.costs.learned import Expected, Learned, cell_of
from grappler_pass.costs.prices import cast_works, price_from_profile
from grappler_pass.costs.work.op_work import works_of
from grappler_pass.costs.work.piece import Work


class CostModel:
    """Price calls on the device of ``profile``; the same call costs one look-up.

    Every price is positive except that of an op that runs no kernel or moves no data
    (constants, variable reads, reshapes), which is 0.0.
    """

    def __init__(self, profile: DeviceProfile, learned: Learned | None = None) -> None:
        """Price by ``profile``, as far as what was ``learned`` does not correct it.

        What is learned later counts from then on.
        """
        self.profile = profile
        self.learned = Learned() if learned is None else learned
        self._version = self.learned.version
        self._prices: dict[tuple[object, ...], Price] = {}

    def price(self, call: OpCall, dtype: str) -> Price:
        """Return seconds of one execution with floating values held in ``dtype``.

        Args:
            call: op, attributes and shapes; the dtypes of its floating tensors are
                ignored, those of the others count.
            dtype: "float32", "bfloat16" or "float16".
        """
        attrs = call.attrs
        named = tuple((name, attrs[name]) for name in PRICED_ATTRS if name in attrs)
        key = (call.op, dtype, named, call.inputs, call.outputs)
        prices = self._current_prices()
        try:
            known = prices.get(key)
        except TypeError:  # an attribute given as a list
            return self._price(call, dtype)
        if known is None:
            known = prices[key] = self._price(call, dtype)
        return known

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return seconds of a Cast of ``elements`` values; 0.0 between equal dtypes."""
        if source == target:
            return Price(0.0, "profile")
        prices, key = self._current_prices(), (elements, source, target)
        known = prices.get(key)
        if known is None:
            works = cast_works(elements, source, target)
            known = prices[key] = self._corrected("Cast", works, f"{source}>{target}")
        return known

    def expected(self, call: OpCall, dtype: str) -> Expected | None:
        """Return what the profile alone predicts.

        None where no kernel runs, or a size is guessed: neither teaches anything.
        """
        works = works_of(call, dtype)
        if not works or not is_whole(call):
            return None
        seconds = price_from_profile(self.profile, works, dtype).seconds
        return Expected(self._cell(call.op, works, dtype), seconds)

    def _price(self, call: OpCall, dtype: str) -> Price:
        if call.op == "Cast" and call.inputs and call.outputs:
            # One of the user's own, which keeps its types.
            source, target = (spec.dtype for spec in (call.inputs[0], call.outputs[0]))
            return self.cast_price(call.outputs[0].elements, source, target)
        price = self._corrected(call.op, works_of(call, dtype), dtype)
        return price._replace(error=with_guesses(price.error, call))

    def _corrected(self, op: str, works: Sequence[Work], dtype: str) -> Price:
        """Return what the profile predicts, corrected by what steps have taught."""
        price = price_from_profile(self.profile, works, dtype)
        if not works or not self.learned.lessons:
            return price
        lesson = self.learned.believed(self._cell(op, works, dtype))
        if lesson is None:
            return price
        return Price(price.seconds * lesson.ratio, "learned", lesson.error)

    def _cell(self, op: str, works: Sequence[Work], dtype: str) -> str:
        profile = self.profile
        when = f" {profile.provenance['date']}" if profile.device is not None else ""
        return cell_of(op, works, dtype, f"{profile.name}{when}")

    def _current_prices(self) -> dict[tuple[object, ...], Price]:
        """Return the prices by what is known now."""
        if self._version != self.learned.version:
            self._version, self._prices = self.learned.version, {}
        return self._prices
