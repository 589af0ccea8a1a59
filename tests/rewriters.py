"""The pass under test, bound to settings and prices that tests use."""

from __future__ import annotations

import dataclasses
import zlib

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, Price, TensorSpec
from grappler_pass.costs.op_work import in_batches
from grappler_pass.fusions import RULES
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite, Settings, optimize


@dataclasses.dataclass(frozen=True)
class ArbitraryPrices:
    """Prices drawn from a seed: under O1 they make any mixture of dtypes optimal."""

    seed: int
    profile: DeviceProfile = dataclasses.field(
        default_factory=lambda: DeviceProfile.load("cpu-generic")
    )
    # Nearly nothing, so that colors mix.
    cast_scale: float = 0.05

    def price(self, call: OpCall, dtype: str) -> Price:
        """Return seconds by op and shapes, alike for both of the 16-bit types."""
        shapes = [spec.shape for spec in (*call.inputs, *call.outputs)]
        return self._drawn(f"{call.op} {shapes} {dtype == 'float32'}", 1.0)

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return seconds by size and direction."""
        return self._drawn(f"{elements} {source == 'float32'}", self.cast_scale)

    def runs_in_batches(self, call: OpCall, dtype: str) -> bool:
        """Return whether a fused product that may be a batched one is it, as drawn."""
        return bool(in_batches(call, dtype)) and self.price(call, "batch").seconds > 0.5

    def _drawn(self, text: str, scale: float) -> Price:
        drawn = zlib.crc32(f"{self.seed} {text}".encode()) / 2**32
        return Price(scale * (0.01 + drawn), "arbitrary")


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

    @property
    def of_device(self) -> LargePrices:
        """The prices of the device alone, however fast its host starts ops."""
        return LargePrices(self.model.of_device)

    def price(self, call: OpCall, dtype: str) -> Price:
        """Return seconds of the large call."""
        return self.model.price(_large(call), dtype)

    def runs_in_batches(self, call: OpCall, dtype: str) -> bool:
        """Return whether the large call is faster as a batched product."""
        return self.model.runs_in_batches(_large(call), dtype)

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return seconds of the large cast."""
        return self.model.cast_price(elements * GROWTH**2, source, target)


def _large(call: OpCall) -> OpCall:
    inputs = tuple(
        _grown(spec, is_kernel="Conv" in call.op and i == 1)
        for i, spec in enumerate(call.inputs)
    )
    return call._replace(inputs=inputs, outputs=tuple(map(_grown, call.outputs)))


def _grown(spec: TensorSpec, *, is_kernel: bool = False) -> TensorSpec:
    """Return a spec with longer ends; of a kernel the window is left as it is."""
    if not spec.shape:
        return spec
    shape = list(spec.shape)
    for axis in {len(shape) - 1, len(shape) - 2 if is_kernel else 0}:
        if (shape[axis] or 1) > 1:
            shape[axis] *= GROWTH
    return spec._replace(shape=tuple(shape))


def settings_of(
    low_dtype: str, level: str, *, seed: int = 0, **fields: object
) -> Settings:
    """Return settings with arbitrary prices; further fields as in `Settings`."""
    given = {
        "models": {"CPU": ArbitraryPrices(seed)},
        "fusions": RULES,
        "home": Home("CPU"),
        **fields,
    }
    lists = OpLists.for_dtype(low_dtype)
    return Settings(low_dtype=low_dtype, lists=lists, opt_level=level, **given)


def rewritten_by(graph_def: GraphDef, item: Item, settings: Settings) -> Rewrite:
    """Run the pass with shapes inferred by importing the graph."""
    return optimize(
        graph_def,
        item,
        settings,
        shapes=lambda: shapes_from_graph_def(graph_def),
        name="test",
    )
