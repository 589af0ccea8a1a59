"""From shapes and a cost model to seconds per step.

Of every node at both dtypes, of every cast, as often as its loop runs it, with the
error of each. What the assignment problem makes of them is `coloring`'s.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence, Set
from typing import NamedTuple

from tensorflow.core.framework import types_pb2

from grappler_pass.annotations import REWRITTEN
from grappler_pass.costs import CostModel, OpCall, attrs_from_node_def
from grappler_pass.costs.calls import FLOATING, Price, TensorSpec
from grappler_pass.costs.op_classes import ELEMENTWISE, FREE_OPS
from grappler_pass.eligibility.fused_ops import RESHAPING_NODES, lost_shape
from grappler_pass.eligibility.reads import VariableReads, is_free_down
from grappler_pass.graph.op_table import ADDITION_OPS, IDENTITY_OPS, PRODUCT_OPS, ROOTS
from grappler_pass.graph.shapes import Shape, Shapes, known_shape, variable_shape
from grappler_pass.graph.type_slots import (
    DTYPE_ENUMS,
    FLOAT32,
    NO_SLOT,
    SlotTable,
    dtype_name,
)
from grappler_pass.graph.view import Graph, Node, Port

# PCI Express 3.0 with 16 lanes, as sustained in practice: NVIDIA's bandwidthTest
# reports 12 GB/s on V100 servers.
TRANSFER_BYTES_PER_SECOND = 12e9

# What a node costs TensorFlow's executor on a CPU, beside its kernel: 8 casts among
# three products of 16x16 took 24 microseconds where 7 were predicted (2 threads, a busy
# machine), a training step of 238 small nodes 0.77 ms where its kernels and its start
# take 0.44. A GPU's launch overhead is part of its profile.
NODE_SECONDS = 1e-6


def is_started(node: Node) -> bool:
    """Return whether an op is started for a node, which has work for its device.

    Free are constants, arguments and results, variables and their reads, shapes,
    Identity, Reshape and other views, control flow, and the exchange between devices.
    """
    return node.op not in FREE_OPS


def started_ops(view: Graph) -> float:
    """Return how many ops a step starts; those in loops count each time."""
    run = (i for i in view.behind(view.roots) if is_started(view.nodes[i]))
    return sum(map(view.weight, run))


# What TensorFlow's remapper, which runs again, fuses behind a product and its bias.
_FUSED_ACTIVATIONS = ("Elu", "LeakyRelu", "Relu", "Relu6")
_FUSED_OPS = frozenset({"BiasAdd", *ADDITION_OPS, *_FUSED_ACTIVATIONS})

Models = Mapping[str, CostModel]


class CastPrice(NamedTuple):
    """Seconds per step of casting a tensor up, or down, and the error of either.

    The error is of the logarithm of what is less sure of the two.
    """

    up: float = 0.0
    down: float = 0.0
    error: float = 0.0


@dataclasses.dataclass(frozen=True)
class Prices:
    """Seconds per step, and how sure they are.

    Attributes:
      float32: per node, in the graph as given.
      low: per node; None where no slot of it may be in 16 bits.
      sources: per node, where the less sure of its prices comes from.
      casts: per port that a low node could write, so that it is cast up, or read, so
        that it is cast down.
      errors: per node, of the logarithm of the seconds in float32 and low.
      calls: per node what is priced, where it may be in 16 bits and its own kernel
        runs as priced; else None.
      executor: what running the nodes takes beside their kernels, in either type.
      host: what the host of a GPU takes to start the ops, one after another; the GPU
        runs them meanwhile.
      start: what one more takes.
    """

    float32: tuple[float, ...]
    low: tuple[float | None, ...]
    sources: tuple[str, ...]
    casts: Mapping[Port, CastPrice]
    errors: tuple[tuple[float, float], ...] = ()
    calls: tuple[OpCall | None, ...] = ()
    executor: float = 0.0
    host: float = 0.0
    start: float = 0.0


@dataclasses.dataclass(eq=False)
class Pricer:
    """The look-ups that pricing one graph shares; every node is a kernel of its own.

    Shapes that are missing are guessed by the models. What is `kept` is so in 16 bits
    between calls, if anything reads it so. With models of `hosts` the models are those
    of devices alone: what hosts take to start ops is counted apart.
    """

    _view: Graph
    _slots: SlotTable
    _shapes: Shapes
    _models: Models
    _low_dtype: str
    _reads: VariableReads
    _kept: Set[Port] = frozenset()
    _hosts: Models | None = None

    def __post_init__(self) -> None:
        """Begin with no price."""
        low = {DTYPE_ENUMS["bfloat16"], DTYPE_ENUMS["float16"]}
        self._is_mixed = not low.isdisjoint(self._slots.dtypes)
        self._casts: dict[Port, CastPrice] = {}
        self._priced_down: set[Port] = set()
        self._calls: dict[int, OpCall] = {}
        self._epilogues = self._find_epilogues()

    def prices(self, eligible: Sequence[bool]) -> Prices:
        """Price every node at float32, and with its casts low if a slot is eligible."""
        nodes, slots_of = self._view.nodes, self._slots.slots_of
        float32 = [self.price(node, self._given_dtype(node)) for node in nodes]
        low: list[Price | None] = []
        calls: list[OpCall | None] = []
        for node, price in zip(nodes, float32, strict=True):
            own = {slot for slot in slots_of[node.index] if eligible[slot]}
            alone = self._slots.has_float32_results(node.index)
            if not own:
                low.append(None)
            elif alone:
                low.append(self._product_alone_price(node, price))
            else:
                low.append(self.price(node, self._low_dtype))
            for port in self._view.output_ports(node.index):
                if self._slots.output_slot(*port) in own:
                    up = self.cast_price(port, self._low_dtype, "float32")
                    up = self._parted(port, up, "float32")
                    times = self._view.weight(node.index)
                    self._note(port, up.error, up=up.seconds * times)
            for position, port in enumerate(node.inputs):
                if self._slots.input_slot(node.index, position) in own:
                    self._price_down(port)
            is_own = not alone and node.index not in self._reads.copies
            is_priced = bool(own) and is_own and self._runs(node) > 0.0
            calls.append(self.call(node) if is_priced else None)
        runs = list(map(self._runs, nodes))
        both = list(zip(float32, low, strict=True))
        less_sure = (b if b and b.error > a.error else a for a, b in both)
        seconds = [a.seconds * times for (a, _), times in zip(both, runs, strict=True)]
        low_seconds = [
            b.seconds * times if b else None
            for (_, b), times in zip(both, runs, strict=True)
        ]
        self._charge_transfers(eligible, seconds, low_seconds)
        return Prices(
            float32=tuple(seconds),
            low=tuple(low_seconds),
            sources=tuple(price.source for price in less_sure),
            casts=self._casts,
            errors=tuple((a.error, b.error if b else 0.0) for a, b in both),
            calls=tuple(calls),
            executor=sum(map(self.executor_seconds, nodes)),
            host=sum(
                self._start_seconds(node) * times
                for node, times in zip(nodes, runs, strict=True)
                if is_started(node)
            ),
            start=max(map(self._start_seconds, nodes), default=0.0),
        )

    def _given_dtype(self, node: Node) -> str:
        """Return the type that a node computes in as given: 16 bits may be there."""
        if not self._is_mixed:
            return "float32"
        outputs = range(self._slots.output_count(node.index))
        ports = (*(Port(node.index, output) for output in outputs), *node.inputs)
        dtypes = (self.spec(port).dtype for port in ports)
        return next((dtype for dtype in dtypes if dtype in FLOATING), "float32")

    def _start_seconds(self, node: Node) -> float:
        """Return what the host takes to start an op on a node's device."""
        if self._hosts is None:
            return 0.0
        host = self._hosts.get(node.device_type) or self._hosts["CPU"]
        return host.profile.roofline.dispatch_seconds

    def executor_seconds(self, node: Node) -> float:
        """Return the seconds per step of running a node beside its kernel."""
        if self.model(node).profile.kind != "cpu":
            return 0.0
        is_pruned = (
            node.op in IDENTITY_OPS
            and not self._view.output_ports(node.index)
            and node.name not in self._view.item.untouchable
        )
        return 0.0 if is_pruned else NODE_SECONDS * self._runs(node)

    def _runs(self, node: Node) -> float:
        """Return how often a node's own kernel runs per step."""
        is_fused = node.index in self._epilogues
        return 0.0 if is_fused else self._view.weight(node.index)

    def price(self, node: Node, dtype: str) -> Price:
        """Return the price of one execution of a node."""
        if node.index in self._reads.copies:
            value = (self.spec(Port(node.index, 0)),)
            return self.model(node).price(OpCall("DeepCopy", {}, value, value), dtype)
        return self.model(node).price(self.call(node), dtype)

    def _product_alone_price(self, node: Node, fused: Price) -> Price:
        """Return the price of a low product, its cast and what is fused behind it."""
        call = self.call(node)
        product = call._replace(op=ROOTS.get(node.op, node.op), inputs=call.inputs[:2])
        low = self.model(node).price(product, self._low_dtype)
        whole = self.model(node).price(product, "float32")
        behind = max(fused.seconds - whole.seconds, 0.0)
        cast = self.cast_price(Port(node.index, 0), self._low_dtype, "float32")
        seconds = low.seconds + cast.seconds + behind
        shape = self.spec(Port(node.index, 0)).shape
        if lost_shape(node.proto, node.device_type, shape) is not None:
            seconds += RESHAPING_NODES * NODE_SECONDS
        return low._replace(seconds=seconds)

    def model(self, node: Node) -> CostModel:
        """Return the model of the device that a node runs on."""
        return self._models.get(node.device_type) or self._models["CPU"]

    def spec(self, port: Port) -> TensorSpec:
        """Return shape and present dtype of a tensor; of a handle, the variable's."""
        dtype = self._slots.output_dtype(port.node, port.output)
        if dtype == types_pb2.DT_RESOURCE:
            shape = variable_shape(self._view.nodes[port.node].proto)
            return TensorSpec(shape, "resource")
        shape = known_shape(self._shapes, self._view, port)
        return TensorSpec(shape, dtype_name(dtype, "float32"))

    def call(self, node: Node) -> OpCall:
        """Return a node as the models see it, made once."""
        if node.index not in self._calls:
            self._calls[node.index] = op_call_of(node, self._slots, self.spec)
        return self._calls[node.index]

    def _find_epilogues(self) -> dict[int, int]:
        """Return the nodes that will be one kernel with an operand, and with which.

        That is a bias that the pass has put behind a product, the sum with a tensor of
        the same shape, and what activates it, where nothing else reads what lies
        between; in either type.
        """
        epilogues: dict[int, int] = {}
        for i in self._view.order:
            node = self._view.nodes[i]
            if node.op not in _FUSED_OPS or node.device_type != "CPU":
                continue
            is_sum_of_two = node.op in ADDITION_OPS and len(node.inputs) == 2
            for position in (0, 1) if is_sum_of_two else (0,):
                if self._continues(node, position, epilogues):
                    epilogues[i] = position
                    break
        return epilogues

    def _continues(self, node: Node, position: int, epilogues: Container[int]) -> bool:
        """Return whether a kernel of a product goes on with what reads it here."""
        view = self._view
        before = view.nodes[node.inputs[position].node]
        readers = view.readers(Port(before.index, 0))
        # What nothing reads or awaits, and no caller relies on, does not count.
        if any(
            view.output_ports(reader.node)
            or view.control_readers(reader.node)
            or view.nodes[reader.node].name in view.item.untouchable
            for reader in readers
            if reader.node != node.index
        ):
            return False
        if node.op == "BiasAdd":
            return before.op in PRODUCT_OPS and REWRITTEN in node.proto.attr
        if before.index not in epilogues:
            return False
        if node.op not in ADDITION_OPS:
            return True
        shapes = {self.spec(port).shape for port in node.inputs}
        return before.op == "BiasAdd" and len(shapes) == 1 and None not in shapes

    def _parted(self, port: Port, price: Price, dtype: str) -> Price:
        """Add to a cast what its reader takes that is fused without the cast."""
        for reader in self._view.readers(port):
            if reader.input == self._epilogues.get(reader.node):
                alone = self.price(self._view.nodes[reader.node], dtype)
                price = price._replace(seconds=price.seconds + alone.seconds)
        return price

    def _price_down(self, port: Port) -> None:
        """Price the cast of a tensor; of equal reads the first is charged the most."""
        if port in self._priced_down:
            return
        self._priced_down.add(port)
        price = self.cast_price(port, "float32", self._low_dtype)
        price = self._parted(port, price, self._low_dtype)
        low_dtype = DTYPE_ENUMS[self._low_dtype]
        is_free = is_free_down(self._view, self._reads, port, low_dtype)
        if is_free or port in self._kept:
            price = price._replace(seconds=0.0)
        # A cast runs as often as its source, one behind a late reader as often as that.
        hoist = self._reads.hoists.get(port)
        outside = self._view.nodes[hoist[-1]].inputs[0].node if hoist else port.node
        late, readers = self._reads.refs.late, self._view.readers(port)
        casters = {r.node if r in late else outside for r in readers} or {outside}
        seconds = price.seconds * sum(map(self._view.weight, casters))
        for each in (port, self._reads.canonical.get(port, port)):
            known = self._casts.get(each, CastPrice())
            self._note(each, price.error, down=max(seconds, known.down))

    def cast_price(self, port: Port, source: str, target: str) -> Price:
        """Return the price of one cast of a tensor from a dtype to another."""
        model = self.model(self._view.nodes[port.node])
        price = model.cast_price(self.spec(port).elements, source, target)
        if model.profile.kind == "cpu":
            price = price._replace(seconds=price.seconds + NODE_SECONDS)
        return price

    def _note(self, port: Port, error: float, **seconds: float) -> None:
        known = self._casts.get(port, CastPrice())
        error = max(error, known.error)
        self._casts[port] = known._replace(error=error, **seconds)

    def _charge_transfers(
        self, eligible: Sequence[bool], float32: list[float], low: list[float | None]
    ) -> None:
        """Charge what crosses devices at its producer's dtype.

        That keeps every pairwise term submodular; the casts themselves are placed so
        that 16 bits cross the wire whichever end is low.
        """
        view, slots = self._view, self._slots
        if len({node.place for node in view.nodes}) == 1:
            return
        for node in view.nodes:
            for port in view.output_ports(node.index):
                places = {view.nodes[r.node].place for r in view.readers(port)}
                crossings = len(places - {node.place})
                if not crossings or slots.output_dtype(*port) != FLOAT32:
                    continue
                seconds = 4 * self.spec(port).elements / TRANSFER_BYTES_PER_SECOND
                seconds *= crossings * view.weight(node.index)
                slot = slots.output_slot(*port)
                goes_low = slot != NO_SLOT and eligible[slot]
                float32[node.index] += seconds
                low_seconds = low[node.index]
                if low_seconds is not None:
                    share = seconds / 2 if goes_low else seconds
                    low[node.index] = low_seconds + share


def op_call_of(
    node: Node, slots: SlotTable, spec: Callable[[Port], TensorSpec]
) -> OpCall:
    """Return a node's op, attributes, and what `spec` says of its tensors.

    An operand of an elementwise op is no larger than the result that it is broadcast
    to, so its unknown sizes are those of the result.
    """
    inputs = tuple(map(spec, node.inputs))
    numbers = range(slots.output_count(node.index))
    outputs = tuple(spec(Port(node.index, output)) for output in numbers)
    if node.op in ELEMENTWISE and outputs:
        inputs = tuple(_within(operand, outputs[0].shape) for operand in inputs)
    return OpCall(node.op, attrs_from_node_def(node.proto), inputs, outputs)


def _within(operand: TensorSpec, result: Shape | None) -> TensorSpec:
    """Return an operand with its unknown sizes as those of a result."""
    own = operand.shape
    if own is None or None not in own or result is None or len(own) > len(result):
        return operand
    sizes = zip(own, result[len(result) - len(own) :], strict=True)
    return operand._replace(shape=tuple(b if a is None else a for a, b in sizes))
