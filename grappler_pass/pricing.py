"""From shapes and a cost model to the assignment problem.

Seconds of every node at both dtypes, of every cast, as often as its loop runs it.
Slots that must share a color become one variable of the cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import dtypes

from grappler_pass.assignment import FLOAT32_SIDE, CastTerm, Problem
from grappler_pass.casts import is_cast, is_free_down
from grappler_pass.costs import CostModel, OpCall, TensorSpec, attrs_from_node_def
from grappler_pass.graph import GraphView, Node, Port, device_type_of
from grappler_pass.propagation import Constraints
from grappler_pass.shapes import Shapes
from grappler_pass.type_slots import DTYPE_ENUMS, FLOAT32, NO_SLOT, SlotTable
from grappler_pass.variable_reads import VariableReads

# PCI Express 3.0 with 16 lanes, as sustained in practice: NVIDIA's bandwidthTest
# reports 12 GB/s on V100 servers.
TRANSFER_BYTES_PER_SECOND = 12e9

Models = Mapping[str, CostModel]


@dataclasses.dataclass(frozen=True)
class Prices:
    """Seconds per step.

    Attributes:
      float32: per node, in the graph as given.
      low: per node; None where no slot of it may go low.
      sources: per node, where its price comes from.
      up: per port that a low node could write, casting it up.
      down: per port that a low node could read, casting it down.
    """

    float32: tuple[float, ...]
    low: tuple[float | None, ...]
    sources: tuple[str, ...]
    up: Mapping[Port, float]
    down: Mapping[Port, float]


def price_graph(
    view: GraphView,
    slots: SlotTable,
    constraints: Constraints,
    shapes: Shapes,
    models: Models,
    low_dtype: str,
    reads: VariableReads,
) -> Prices:
    """Price every node at float32, and what may go low at `low_dtype` with its casts.

    Args:
      view: the graph.
      slots: of `view`.
      constraints: which slots are eligible.
      shapes: static shapes by node name; what is missing is guessed by the model.
      models: a cost model per device type, "CPU" at least.
      low_dtype: "bfloat16" or "float16".
      reads: which variable reads leave their loop.
    """
    pricer = _Pricer(view, slots, shapes, models, low_dtype, reads)
    float32: list[float] = []
    low: list[float | None] = []
    sources: list[str] = []
    up: dict[Port, float] = {}
    down: dict[Port, float] = {}
    for node in view.nodes:
        call = pricer.call(node)
        model = pricer.model(node)
        weight = view.weight(node.index)
        price = model.price(call, "float32")
        float32.append(price.seconds * weight)
        sources.append(price.source)
        eligible = [s for s in slots.slots_of[node.index] if constraints.eligible[s]]
        if not eligible:
            low.append(None)
            continue
        low.append(model.price(call, low_dtype).seconds * weight)
        for port in view.output_ports(node.index):
            if slots.output_slot(*port) in eligible:
                up[port] = pricer.up_seconds(port)
        for position, port in enumerate(node.inputs):
            if slots.input_slot(node.index, position) in eligible:
                down.setdefault(port, pricer.down_seconds(port))
    _charge_transfers(view, slots, constraints, pricer, float32, low)
    return Prices(tuple(float32), tuple(low), tuple(sources), up, down)


class _Pricer:
    """The look-ups that pricing one graph shares."""

    def __init__(
        self,
        view: GraphView,
        slots: SlotTable,
        shapes: Shapes,
        models: Models,
        low_dtype: str,
        reads: VariableReads,
    ) -> None:
        self._view = view
        self._slots = slots
        self._shapes = shapes
        self._models = models
        self._low_dtype = low_dtype
        self._reads = reads

    def model(self, node: Node) -> CostModel:
        return self._models.get(device_type_of(node.device)) or self._models["CPU"]

    def spec(self, port: Port) -> TensorSpec:
        outputs = self._shapes.get(self._view.nodes[port.node].name, ())
        shape = outputs[port.output] if port.output < len(outputs) else None
        dtype = self._slots.output_dtype(port.node, port.output)
        return TensorSpec(shape, _dtype_name(dtype))

    def call(self, node: Node) -> OpCall:
        outputs = range(self._slots.output_count(node.index))
        return OpCall(
            node.op,
            attrs_from_node_def(node.proto),
            tuple(map(self.spec, node.inputs)),
            tuple(self.spec(Port(node.index, output)) for output in outputs),
        )

    def up_seconds(self, port: Port) -> float:
        producer = self._view.nodes[port.node]
        price = self.model(producer).cast_price(
            self.spec(port).elements, self._low_dtype, "float32"
        )
        return price.seconds * self._view.weight(port.node)

    def down_seconds(self, port: Port) -> float:
        producer = self._view.nodes[port.node]
        if is_free_down(self._view, port, DTYPE_ENUMS[self._low_dtype]):
            return 0.0
        price = self.model(producer).cast_price(
            self.spec(port).elements, "float32", self._low_dtype
        )
        hoist = self._reads.hoists.get(port)
        outside = self._view.nodes[hoist[-1]].inputs[0].node if hoist else port.node
        return price.seconds * self._view.weight(outside)


def _dtype_name(dtype: int) -> str:
    if dtype == types_pb2.DT_INVALID:
        return "float32"
    return str(dtypes.as_dtype(dtype).base_dtype.name)


def _charge_transfers(
    view: GraphView,
    slots: SlotTable,
    constraints: Constraints,
    pricer: _Pricer,
    float32: list[float],
    low: list[float | None],
) -> None:
    """Charge what crosses devices at its producer's dtype.

    That keeps every pairwise term submodular; the casts themselves are placed so that
    16 bits cross the wire whichever end is low.
    """
    if len({node.device for node in view.nodes}) == 1:
        return
    for node in view.nodes:
        for port in view.output_ports(node.index):
            devices = {view.nodes[r.node].device for r in view.readers(port)}
            crossings = len(devices - {node.device})
            if not crossings or slots.output_dtype(*port) != FLOAT32:
                continue
            seconds = 4 * pricer.spec(port).elements / TRANSFER_BYTES_PER_SECOND
            seconds *= crossings * view.weight(node.index)
            slot = slots.output_slot(*port)
            goes_low = slot != NO_SLOT and constraints.eligible[slot]
            float32[node.index] += seconds
            low_seconds = low[node.index]
            if low_seconds is not None:
                low[node.index] = low_seconds + (seconds / 2 if goes_low else seconds)


@dataclasses.dataclass(frozen=True)
class Variables:
    """Slots as variables of the cut.

    Attributes:
      of_slot: slot number to variable, FLOAT32_SIDE where the slot is not eligible.
      count: number of variables.
    """

    of_slot: tuple[int, ...]
    count: int

    @classmethod
    def from_constraints(cls, constraints: Constraints) -> Variables:
        """Give each eligible slot a variable, tied ones the same."""
        leader: dict[int, int] = {}
        for group in constraints.ties:
            for slot in group:
                leader[slot] = group[0]
        numbers: dict[int, int] = {}
        of_slot = [
            numbers.setdefault(leader.get(slot, slot), len(numbers))
            if eligible
            else FLOAT32_SIDE
            for slot, eligible in enumerate(constraints.eligible)
        ]
        return cls(tuple(of_slot), len(numbers))

    def spread(self, low: Sequence[bool]) -> tuple[bool, ...]:
        """Return the color of every slot from the color of every variable."""
        return tuple(v != FLOAT32_SIDE and low[v] for v in self.of_slot)


def problem_from_prices(
    view: GraphView,
    slots: SlotTable,
    variables: Variables,
    prices: Prices,
    reads: VariableReads,
) -> Problem:
    """State the assignment problem whose minimum cut is the plan."""
    float32 = [0.0] * variables.count
    low = [0.0] * variables.count
    for node, low_seconds in enumerate(prices.low):
        if low_seconds is None:
            continue
        # A node is priced once: by the first of its slots that may go low.
        variable = next(
            v for s in slots.slots_of[node] if (v := variables.of_slot[s]) >= 0
        )
        float32[variable] += prices.float32[node]
        low[variable] += low_seconds
    return Problem(float32, low, _cast_terms(view, slots, variables, prices, reads))


def _cast_terms(
    view: GraphView,
    slots: SlotTable,
    variables: Variables,
    prices: Prices,
    reads: VariableReads,
) -> list[CastTerm]:
    readers_of: dict[Port, set[int]] = {}
    for port in dict.fromkeys((*prices.up, *prices.down)):
        if slots.output_dtype(*port) != FLOAT32:
            continue
        found = readers_of.setdefault(reads.canonical.get(port, port), set())
        for reader in view.readers(port):
            # An existing Cast reads either dtype.
            if not is_cast(view.nodes[reader.node]):
                found.add(_variable(variables, slots.input_slot(*reader)))
    return [
        CastTerm(
            producer=_variable(variables, slots.output_slot(*port)),
            readers=frozenset(found),
            up_seconds=prices.up.get(port, 0.0),
            down_seconds=prices.down.get(port, 0.0),
        )
        for port, found in readers_of.items()
    ]


def _variable(variables: Variables, slot: int) -> int:
    return FLOAT32_SIDE if slot == NO_SLOT else variables.of_slot[slot]
