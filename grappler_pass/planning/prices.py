"""From shapes and a cost model to seconds per step.

Of every node at both dtypes, of every cast, as often as its loop runs it, with the
error of each. What the assignment problem makes of them is `coloring`'s.

TensorFlow's inference forgets the elements of a tensor list that goes around a loop,
and with them every shape in the backward pass of a recurrent network. What was pushed
shows what is popped; a few rules carry the shape on. A wrong guess makes a price wrong.
Where rounding does harm depends on what is broadcast, too, so of that nothing is
guessed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2

from grappler_pass.annotations import REWRITTEN
from grappler_pass.costs import CostModel, OpCall, attrs_from_node_def
from grappler_pass.costs.calls import DTYPE_BYTES, Price, TensorSpec
from grappler_pass.costs.model import roofline_error
from grappler_pass.costs.op_classes import ELEMENTWISE, MATMULS, REDUCTIONS
from grappler_pass.eligibility.fused_ops import RESHAPING_NODES, lost_shape
from grappler_pass.eligibility.reads import VariableReads, is_free_down
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_table import ADDITION_OPS, PRODUCT_OPS, ROOTS, VIEW_OPS
from grappler_pass.graph.op_traits import is_random
from grappler_pass.graph.shapes import Shape, Shapes, known_shape, variable_shape
from grappler_pass.graph.type_slots import (
    DTYPE_ENUMS,
    FLOAT32,
    NO_SLOT,
    SlotTable,
    dtype_name,
)
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.graph.walks import reached

# Results have the shape of the first operand; of these, of any.
_ONE_OF_ALL = table.MERGE_OPS | {"AddN"}
_PASS = table.FORWARDING_OPS | _ONE_OF_ALL | {"Cast", "ZerosLike"}
# What has fewer dimensions is often broadcast.
_LEAST_RANK = 2


def fill_shapes(view: Graph, shapes: Shapes) -> Shapes:
    """Return a graph's shapes with what the rules can tell of unknown ones."""
    if not any(node.op in table.POPPED_OUTPUT for node in view.nodes):
        return shapes
    filled = dict(shapes)
    # The second sweep carries on what came around a loop.
    for i in (*view.order, *view.order):
        node = view.nodes[i]
        known = filled.get(node.name, ())
        if all(map(_is_known, known)) or not node.inputs:
            continue
        if (guess := _guess(view, filled, node)) is None:
            continue
        # A guess of another rank than TensorFlow's own inference is wrong.
        if any(shape and len(shape) != len(guess) for shape in known):
            continue
        # A popped list has but one tensor.
        only = table.POPPED_OUTPUT.get(node.op)
        count = max(len(known), 1 if only is None else only + 1)
        padded = (*known, *[None] * (count - len(known)))
        filled[node.name] = tuple(
            guess if not _is_known(shape) and only in (None, output) else shape
            for output, shape in enumerate(padded)
        )
    return filled


def _guess(view: Graph, shapes: Shapes, node: Node) -> Shape | None:
    """Return the shape of a node's results by those of its operands, if that tells."""
    inputs = [known_shape(shapes, view, port) for port in node.inputs]
    known = [shape for shape in inputs if shape is not None and _is_known(shape)]
    if node.op in table.POPPED_OUTPUT:
        return _pushed(view, shapes, node)
    if node.op in _PASS:
        # What a switch is turned by, and how large a frame is, are no data.
        count = len(inputs) if node.op in _ONE_OF_ALL else 1
        return next(filter(_is_known, inputs[:count]), None)
    if node.op in MATMULS:
        left, right = inputs[:2]
        if left is None or right is None or len(left) != 2 or len(right) != 2:
            return None
        attrs = node.proto.attr
        rows = left[1 if "transpose_a" in attrs and attrs["transpose_a"].b else 0]
        columns = right[0 if "transpose_b" in attrs and attrs["transpose_b"].b else 1]
        return (rows, columns)
    if node.op == "BiasAddGrad":
        return inputs[0][-1:] if _is_known(inputs[0]) and inputs[0] else None
    if node.op == "ConcatV2":
        parts = [shape for shape in inputs[:-1] if shape and _is_known(shape)]
        last = view.nodes[node.inputs[-1].node]
        if last.op != "Const" or len(parts) < len(inputs) - 1:
            return None
        value = tf.make_ndarray(last.proto.attr["value"].tensor)
        axis = int(value.item()) % len(parts[0])
        total = sum(shape[axis] or 0 for shape in parts)
        return (*parts[0][:axis], total, *parts[0][axis + 1 :])
    if node.op in ELEMENTWISE or node.op == "BiasAdd":
        # Beside an unknown shape a vector may be a bias.
        least = 0 if len(known) == len(inputs) else _LEAST_RANK
        if max(map(len, known), default=-1) < least:
            return None
        try:
            return np.broadcast_shapes(*known)  # type: ignore[arg-type]
        except ValueError:
            return None
    return None


def _pushed(view: Graph, shapes: Shapes, node: Node) -> Shape | None:
    """Return the shape of what was pushed on the list that `node` reads."""

    def before(i: int) -> list[int]:
        is_merge = view.nodes[i].op == "Merge"
        return [port.node for port in view.nodes[i].inputs[: None if is_merge else 1]]

    # The nodes that the list has come through, back through loops.
    for source in map(view.nodes.__getitem__, reached([node.inputs[0].node], before)):
        if source.op == "TensorListFromTensor":
            whole = known_shape(shapes, view, source.inputs[0])
            return whole[1:] if whole and _is_known(whole[1:]) else None
        if source.op in table.PUSHED_INPUT:
            pushed = source.inputs[table.PUSHED_INPUT[source.op]]
            shape = known_shape(shapes, view, pushed)
        else:
            shape = variable_shape(source.proto) if source.op == "_Arg" else None
        if _is_known(shape):
            return shape
    return None


def _is_known(shape: Shape | None) -> bool:
    return shape is not None and None not in shape


# PCI Express 3.0 with 16 lanes, as sustained in practice: NVIDIA's bandwidthTest
# reports 12 GB/s on V100 servers.
TRANSFER_BYTES_PER_SECOND = 12e9

# What a node costs TensorFlow's executor on a CPU, beside its kernel: 8 casts among
# three products of 16x16 took 24 microseconds where 7 were predicted (2 threads, a busy
# machine), a training step of 238 small nodes 0.77 ms where its kernels and its start
# take 0.44. A GPU's launch overhead is part of its profile.
NODE_SECONDS = 1e-6

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
    """

    float32: tuple[float, ...]
    low: tuple[float | None, ...]
    sources: tuple[str, ...]
    casts: Mapping[Port, CastPrice]
    errors: tuple[tuple[float, float], ...] = ()
    calls: tuple[OpCall | None, ...] = ()
    executor: float = 0.0


@dataclasses.dataclass(eq=False)
class Pricer:
    """The look-ups that pricing one graph shares; every node is a kernel of its own.

    Shapes that are missing are guessed by the models. What is `kept` is so in 16 bits
    between calls, if anything reads it so.
    """

    _view: Graph
    _slots: SlotTable
    _shapes: Shapes
    _models: Models
    _low_dtype: str
    _reads: VariableReads
    _kept: Set[Port] = frozenset()

    def __post_init__(self) -> None:
        """Begin with no price."""
        self._casts: dict[Port, CastPrice] = {}
        self._priced_down: set[Port] = set()
        self._calls: dict[int, OpCall] = {}
        self._epilogues = self._find_epilogues()

    def prices(self, eligible: Sequence[bool]) -> Prices:
        """Price every node at float32, and with its casts low if a slot is eligible."""
        nodes, slots_of = self._view.nodes, self._slots.slots_of
        float32 = [self.price(node, "float32") for node in nodes]
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
        )

    def executor_seconds(self, node: Node) -> float:
        """Return the seconds per step of running a node beside its kernel."""
        is_cpu = self.model(node).profile.kind == "cpu"
        return NODE_SECONDS * self._runs(node) if is_cpu else 0.0

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
    """Return a node's op, attributes, and what `spec` says of its tensors."""
    outputs = range(slots.output_count(node.index))
    return OpCall(
        node.op,
        attrs_from_node_def(node.proto),
        tuple(map(spec, node.inputs)),
        tuple(spec(Port(node.index, output)) for output in outputs),
    )


_FUSED = frozenset(
    [
        *(op for op in ELEMENTWISE if not is_random(op)),
        *"AddN BiasAdd BroadcastTo Cast Fill OnesLike ZerosLike".split(),
    ]
)
# They read through a kernel, but write a tensor of their own.
_FUSED_READERS = _FUSED | REDUCTIONS.keys() | {"BiasAddGrad"}

# Arithmetic of one elementwise op in 16 bits on a CPU against float32: it is widened,
# computed and rounded again. A tanh of 4M elements took 1.5 times as long, a chain of
# three ops 2.6 times.
_CPU_ROUNDING = 2.0

_FREE = Price(0.0, "roofline")


class FusingPricer(Pricer):
    """Prices where a compiler fuses: elementwise ops cost but the bytes at the ends.

        product --> add --> tanh --> product      add and tanh are one kernel, which
                                                  reads the one product and writes for
                                                  the other

    A tensor between two ops of a kernel is never in memory, whatever its type; a cast
    in front of such an op, or behind it, is part of its kernel. So traffic is charged
    where the size is decided: what a kernel reads to the op outside that wrote it, what
    it writes to the op outside that reads it. A chain of elementwise ops then costs as
    much in float32 as in 16 bits, and stays float32.

    CPUs: XLA computes 16-bit products in float32, with casts around (its compiled code
    has `dot(convert(x), convert(y))`), and rounds after every op of a chain. So 16 bits
    save traffic there, and nothing else.
    """

    def executor_seconds(self, node: Node) -> float:
        """Return 0: what is compiled is one node."""
        return 0.0

    def price(self, node: Node, dtype: str) -> Price:
        """Return the price of a node, or its share of the kernel that it is part of."""
        model = self.model(node)
        if node.op in VIEW_OPS:
            return _FREE
        widened = model.profile.kind == "cpu" and dtype != "float32"
        roofline = model.profile.roofline
        if node.op in _FUSED:
            elements = max((spec.elements for spec in self._tensors(node)), default=1)
            arithmetic = elements / roofline.vector_flops["float32"]
            ports = self._view.output_ports(node.index)
            ends_kernel = any(self._outside_readers(port) for port in ports)
            begins = roofline.overhead_seconds if ends_kernel else 0.0
            seconds = begins + arithmetic * (_CPU_ROUNDING if widened else 1.0)
            return Price(seconds, "roofline", roofline_error(model.profile))
        price = model.price(self.call(node), "float32" if widened else dtype)
        moved = sum(spec.bytes_as(dtype) for spec in self._shared_with_kernels(node))
        if widened:
            # What it reads is widened, and its results are narrowed. Where an end is
            # fused that is part of a kernel, but takes its time all the same.
            per_element = DTYPE_BYTES["float32"] + DTYPE_BYTES[self._low_dtype]
            floats = (spec for spec in self._tensors(node) if spec.dtype == "float32")
            moved += per_element * sum(spec.elements for spec in floats)
        # The bandwidth that generated code reaches, whatever the type.
        bandwidth = roofline.bytes_per_second["float32"]
        seconds = price.seconds + moved / bandwidth
        return price._replace(seconds=seconds)

    def cast_price(self, port: Port, source: str, target: str) -> Price:
        """Return 0 where either end is fused: the cast is part of its kernel."""
        made_by = self._view.source(port, VIEW_OPS).op
        if made_by in _FUSED or not self._outside_readers(port):
            return _FREE
        return super().cast_price(port, source, target)

    def _shared_with_kernels(self, node: Node) -> Iterator[TensorSpec]:
        """Yield what kernels write for a node outside of them, or read from it.

        A tensor that several such nodes read is written for the first of them.
        """
        for port in dict.fromkeys(node.inputs):
            if self._view.source(port, VIEW_OPS).op in _FUSED:
                if self._outside_readers(port)[:1] == [node.index]:
                    yield self.spec(port)
        for port in self._view.output_ports(node.index):
            if any(reader.op in _FUSED for reader in self._final_readers(port)):
                yield self.spec(port)

    def _tensors(self, node: Node) -> Iterator[TensorSpec]:
        yield from map(self.spec, node.inputs)
        outputs = range(self._slots.output_count(node.index))
        yield from (self.spec(Port(node.index, output)) for output in outputs)

    def _outside_readers(self, port: Port) -> list[int]:
        """Return the readers that need a tensor in memory, in node order."""
        readers = self._final_readers(port)
        return sorted(node.index for node in readers if node.op not in _FUSED_READERS)

    def _final_readers(self, port: Port) -> Iterator[Node]:
        """Yield the readers of a tensor, behind what only renames it."""
        waiting = [port]
        while waiting:
            for reader in self._view.readers(waiting.pop()):
                node = self._view.nodes[reader.node]
                renamed = Port(node.index, 0)
                if node.op in VIEW_OPS and self._view.readers(renamed):
                    waiting.append(renamed)
                else:
                    yield node
