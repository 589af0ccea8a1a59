"""Prices of a device for tensors much larger than a test's."""

from __future__ import annotations

import dataclasses

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, Price, TensorSpec
from grappler_pass.costs.probes import Probe

# A layer of 16 by 16 is priced as one of 4,096 by 4,096.
GROWTH = 256


@dataclasses.dataclass(frozen=True)
class LargePrices:
    """What a device takes for tensors whose first and last axes are GROWTH times larger.

    What every call costs, whatever its size, then counts as little as in large models.
    """

    model: CostModel

    @property
    def profile(self) -> DeviceProfile:
        """The device."""
        return self.model.profile

    def price(self, call: OpCall, dtype: str, probe: Probe | None = None) -> Price:
        """Return seconds of the large call."""
        first = [
            _grown(s, both="Conv" not in call.op or i != 1)
            for i, s in enumerate(call.inputs)
        ]
        outputs = tuple(_grown(spec) for spec in call.outputs)
        large = dataclasses.replace(call, inputs=tuple(first), outputs=outputs)
        return self.model.price(large, dtype)

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return seconds of the large cast."""
        return self.model.cast_price(elements * GROWTH**2, source, target)


def _grown(spec: TensorSpec, *, both: bool = True) -> TensorSpec:
    """Return a spec with larger ends; of a kernel its window is left as it is."""
    shape = list(spec.shape or ())
    ends = {len(shape) - 1, 0 if both else len(shape) - 2}
    for axis in ends if shape else ():
        if (shape[axis] or 1) > 1:
            shape[axis] *= GROWTH
    return dataclasses.replace(spec, shape=tuple(shape) if spec.shape else spec.shape)
