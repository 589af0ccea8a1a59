"""Seconds of what XLA compiles: elementwise ops are part of the kernels around them."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator

from grappler_pass.costs.calls import DTYPE_BYTES, Price, TensorSpec
from grappler_pass.costs.model import roofline_error
from grappler_pass.costs.op_classes import (
    BATCH_NORMS,
    CROSS_ENTROPY,
    ELEMENTWISE,
    MOVEMENT,
    REDUCTIONS,
    SOFTMAX,
    UPDATES,
)
from grappler_pass.graph.op_table import (
    ADDITION_OPS,
    CONSTANT_OPS,
    PRODUCT_OPS,
    SHAPE_OPS,
    VIEW_OPS,
)
from grappler_pass.graph.op_traits import is_random
from grappler_pass.graph.view import Node, Port
from grappler_pass.planning.prices import Models, Pricer

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
    """Prices where XLA fuses on CPUs: elementwise ops cost but the bytes at the ends.

        product --> add --> tanh --> product      add and tanh are one kernel, which
                                                  reads the one product and writes for
                                                  the other

    A tensor between two ops of a kernel is never in memory, whatever its type; a cast
    in front of such an op, or behind it, is part of its kernel. So traffic is charged
    where the size is decided: what a kernel reads to the op outside that wrote it, what
    it writes to the op outside that reads it. A chain of elementwise ops then costs as
    much in float32 as in 16 bits, and stays float32.

    XLA computes 16-bit products in float32, with casts around (its compiled code
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
        widened = dtype != "float32"
        roofline = model.profile.roofline
        if node.op in _FUSED:
            elements = max((spec.elements for spec in self._tensors(node)), default=1)
            arithmetic = elements / roofline.vector_flops["float32"]
            ports = self._view.output_ports(node.index)
            ends_kernel = any(self._outside_readers(port) for port in ports)
            begins = roofline.overhead_seconds if ends_kernel else 0.0
            seconds = begins + arithmetic * (_CPU_ROUNDING if widened else 1.0)
            return Price(seconds, "roofline", roofline_error(model.profile))
        price = model.price(self.call(node), "float32")
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


class _Part(enum.Enum):
    """What a node is in the kernels that XLA makes for a GPU."""

    FOLDED = enum.auto()  # known before anything runs
    VIEW = enum.auto()  # renames a tensor, or reads a variable
    LOOP = enum.auto()  # computed where its value is needed
    END = enum.auto()  # reads through a kernel, but writes a tensor of its own
    EPILOGUE = enum.auto()  # part of a product's kernel
    ALONE = enum.auto()  # a kernel of its own, or none


_LOOPS = _FUSED | MOVEMENT.keys() | BATCH_NORMS.keys()
_ENDS = frozenset(
    {*REDUCTIONS, *SOFTMAX, *CROSS_ENTROPY, *UPDATES, "BiasAddGrad", "L2Loss"}
)
_KNOWN, _RENAMING = CONSTANT_OPS | SHAPE_OPS, VIEW_OPS | {"ReadVariableOp"}
_EPILOGUES = frozenset({*ADDITION_OPS, "BiasAdd", "Relu"})
# Of cross entropy: the largest logit, the sum of exponentials and the gradient are
# computed one after the other, each from the logits.
_CROSS_ENTROPY_PASSES = 2


class KernelPricer(Pricer):
    """Prices where XLA makes the kernels of a GPU: what each reads and writes.

    Elementwise ops and data movement are computed where their values are needed, as
    often as that is; a tensor is in memory only if a product or the like reads it.
    Reductions, softmax and updates of variables end such a kernel. Kernels between the
    same products and reductions that read the same tensor are one.

        product --> add --> tanh --> product      one kernel, which reads the one
                     |                            product, and writes for the other
                     '----> sum                   and the sum

    So each tensor in memory is charged for being written once, and for each kernel that
    reads it: to the node that wrote it, or where a kernel did to the first that needs
    it in memory, since there its type is decided. Bias, activation and scale behind a
    product are part of it; a product reads and writes at its own price. Casts beside
    such a kernel are free.

    Reference: openxla.org, XLA:GPU Architecture Overview (fusion, multi-output fusion,
    cuBLAS epilogues).
    """

    def __post_init__(self) -> None:
        """Find the kernels, and what they move."""
        super().__post_init__()
        self._parts = [_Part.ALONE] * len(self._view.nodes)
        for i in self._view.order:
            self._parts[i] = self._part(self._view.nodes[i])
        self._readers: defaultdict[Port, list[Node]] = defaultdict(list)
        for node in self._view.nodes:
            if self._parts[node.index] is not _Part.VIEW:
                for port in dict.fromkeys(map(self._origin, node.inputs)):
                    self._readers[port].append(node)
        # By node, what it is charged for: tensors, each with how often it is moved.
        self._moved: defaultdict[int, list[tuple[Port, float]]] = defaultdict(list)
        self._starting: set[int] = set()
        self._find_kernels()

    def executor_seconds(self, node: Node) -> float:
        """Return 0: what is compiled is one node."""
        return 0.0

    def price(self, node: Node, dtype: str) -> Price:
        """Return the price of a node, with its share of the kernels around it."""
        model = self.model(node)
        roofline = model.profile.roofline
        price = Price(0.0, "roofline", roofline_error(model.profile))
        if self._parts[node.index] is _Part.ALONE:
            price = model.price(self.call(node), dtype)
        specs = ((self.spec(port), times) for port, times in self._moved[node.index])
        moved = 0.0
        for spec, times in specs:
            # What is in 16 bits as given stays so; variables are in float32.
            kind = {"float32": dtype, "resource": "float32"}.get(spec.dtype, spec.dtype)
            moved += spec.elements * DTYPE_BYTES.get(kind, 4) * times
        seconds = moved / roofline.bytes_per_second["float32"]
        if node.index in self._starting:
            seconds += roofline.overhead_seconds
        return price._replace(seconds=price.seconds + seconds)

    def cast_price(self, port: Port, source: str, target: str) -> Price:
        """Return 0 where either end is in a kernel: the cast is part of it."""
        port = self._origin(port)
        reads_memory = any(self._is_alone(node) for node in self._readers[port])
        if self._parts[port.node] in (_Part.LOOP, _Part.END) or not reads_memory:
            return _FREE
        profile = self.model(self._view.nodes[port.node]).profile
        width = DTYPE_BYTES[source] + DTYPE_BYTES[target]
        bandwidth = profile.roofline.bytes_per_second["float32"]
        seconds = self.spec(port).elements * width / bandwidth
        seconds += profile.roofline.overhead_seconds
        return Price(seconds, "roofline", roofline_error(profile))

    def _part(self, node: Node) -> _Part:
        """Return what a node is, given what those before it are."""
        before = (self._parts[port.node] for port in node.inputs)
        is_folded = all(part is _Part.FOLDED for part in before)
        if node.op in _KNOWN or (is_folded and node.op in _LOOPS):
            return _Part.FOLDED
        if node.op in _RENAMING and self._view.readers(Port(node.index, 0)):
            return _Part.VIEW
        if self._is_epilogue(node):
            return _Part.EPILOGUE
        if node.op in _ENDS:
            return _Part.END
        return _Part.LOOP if node.op in _LOOPS else _Part.ALONE

    def _is_alone(self, node: Node) -> bool:
        return self._parts[node.index] is _Part.ALONE

    def _is_epilogue(self, node: Node) -> bool:
        """Return whether a product's kernel adds a bias to it, or activates it."""
        if node.op not in _EPILOGUES or not node.inputs:
            return False
        sizes = [self.spec(port).elements for port in node.inputs]
        product = self._origin(node.inputs[sizes.index(max(sizes))])
        is_bias = node.op == "Relu" or min(sizes) < max(sizes)
        before = self._view.nodes[product.node]
        if before.op not in PRODUCT_OPS and self._parts[product.node] != _Part.EPILOGUE:
            return False
        return is_bias and len(list(self._final_readers(product))) == 1

    def _final_readers(self, port: Port) -> Iterator[Node]:
        """Yield the readers of a tensor, behind what only renames it."""
        for reader in self._view.readers(port):
            node = self._view.nodes[reader.node]
            if self._parts[node.index] is _Part.VIEW:
                yield from self._final_readers(Port(node.index, 0))
            else:
                yield node

    def _origin(self, port: Port) -> Port:
        """Return a tensor as it is called before what only renames it."""
        while self._parts[port.node] is _Part.VIEW:
            port = self._view.nodes[port.node].inputs[0]
        return port

    def _is_stored(self, port: Port) -> bool:
        """Return whether a tensor is in memory."""
        if self._parts[port.node] is not _Part.LOOP:
            return True
        name = self._view.nodes[port.node].name
        is_fetched = name in self._view.item.untouchable
        return is_fetched or any(map(self._is_alone, self._readers[port]))

    def _find_kernels(self) -> None:
        """Note what each kernel reads and writes, and where it starts.

        The level of a value is how many products, reductions and the like come before
        it, one behind the other. Kernels on one level do not wait for each other: those
        that read the same tensors are one.
        """
        view, parts = self._view, self._parts
        levels, ready = [0] * len(view.nodes), [0] * len(view.nodes)
        largest: dict[int, frozenset[Port]] = {}
        begun: set[tuple[int, Port]] = set()
        for i in view.order:
            node = view.nodes[i]
            levels[i] = max((ready[port.node] for port in node.inputs), default=0)
            # A variable may be read behind an update of it.
            waits = node.controls if parts[i] is _Part.VIEW else ()
            levels[i] = max([levels[i], *(levels[source] for source in waits)])
            is_later = parts[i] in (_Part.END, _Part.ALONE) or node.op in BATCH_NORMS
            ready[i] = levels[i] + (is_later and bool(node.inputs))
            if parts[i] not in (_Part.LOOP, _Part.END) or not node.inputs:
                continue
            read = set[Port]()
            for port in map(self._origin, node.inputs):
                read |= (
                    {port} if self._is_stored(port) else largest.get(port.node, {port})
                )
            most = max((self.spec(port).elements for port in read), default=0)
            largest[i] = frozenset(p for p in read if self.spec(p).elements == most)
            stored = any(map(self._is_stored, view.output_ports(i)))
            if parts[i] is _Part.END or stored:
                keys = {(levels[i], port) for port in largest[i]}
                if keys.isdisjoint(begun):
                    self._starting.add(i)
                begun |= keys | {(levels[i], port) for port in view.output_ports(i)}
        # The levels of the kernels that compute a node.
        computed: defaultdict[int, set[int]] = defaultdict(set)
        for i in reversed(view.order):
            node = view.nodes[i]
            if parts[i] is _Part.END:
                computed[i] = {levels[i]}
            for port in view.output_ports(i) if parts[i] is not _Part.VIEW else ():
                reading = set[int]().union(
                    *(computed[reader.index] for reader in self._readers[port])
                )
                if parts[i] is not _Part.LOOP:
                    if reading and parts[i] is not _Part.FOLDED:
                        self._moved[i].append((port, float(len(reading))))
                    continue
                if not self._is_stored(port):
                    computed[i] |= reading
                    continue
                computed[i].add(levels[i])
                # A kernel that writes a tensor need not read it.
                needing = filter(self._is_alone, self._readers[port])
                charged = min((reader.index for reader in needing), default=i)
                times = 1.0 + len(reading - {levels[i]})
                self._moved[charged].append((port, times))
            self._moved[i] += self._own_passes(node)

    def _own_passes(self, node: Node) -> Iterator[tuple[Port, float]]:
        """Yield what a node moves beside what its kernels read for it."""
        if node.op in UPDATES:
            # The handles of the variables that it writes.
            yield from (
                (p, 1.0) for p in node.inputs if self.spec(p).dtype == "resource"
            )
        elif node.op in BATCH_NORMS:
            # For the statistics, before anything can be normalized with them.
            attrs = node.proto.attr
            if "is_training" not in attrs or attrs["is_training"].b:
                count = 2 if "Grad" in node.op else 1
                yield from ((port, 1.0) for port in node.inputs[:count])
        elif self._parts[node.index] is _Part.END:
            for output in range(self._slots.output_count(node.index)):
                yield Port(node.index, output), 1.0
            if node.op in CROSS_ENTROPY:
                yield node.inputs[0], _CROSS_ENTROPY_PASSES


def pricer_of_compiled(models: Models, device_type: str) -> type[Pricer]:
    """Return what prices a graph that XLA compiles for one type of device."""
    model = models.get(device_type) or models["CPU"]
    return FusingPricer if model.profile.kind == "cpu" else KernelPricer
