"""Prices of a device for tensors much larger than a test's."""

from __future__ import annotations

import dataclasses

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, Price, TensorSpec

# A layer of 16 by 16 is priced as one of 4,096 by 4,096.
GROWTH = 256


@dataclasses.dataclass(frozen=True)
class LargePrices:
    """What a device takes for tensors with first and last axes GROWTH times as long.

    What every call costs, whatever its size, then counts as little as in large models.
    """

    model: CostModel

    @property
    def profile(self) -> DeviceProfile:
        """The device."""
        return self.model.profile

    def price(self, call: OpCall, dtype: str) -> Price:
        """Return seconds of the large call."""
        inputs = tuple(
            _grown(spec, is_kernel="Conv" in call.op and i == 1)
            for i, spec in enumerate(call.inputs)
        )
        outputs = tuple(map(_grown, call.outputs))
        large = call._replace(inputs=inputs, outputs=outputs)
        return self.model.price(large, dtype)

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return seconds of the large cast."""
        return self.model.cast_price(elements * GROWTH**2, source, target)


def _grown(spec: TensorSpec, *, is_kernel: bool = False) -> TensorSpec:
    """Return a spec with longer ends; of a kernel the window is left as it is."""
    if not spec.shape:
        return spec
    shape = list(spec.shape)
    for axis in {len(shape) - 1, len(shape) - 2 if is_kernel else 0}:
        if (shape[axis] or 1) > 1:
            shape[axis] *= GROWTH
    return spec._replace(shape=tuple(shape))
