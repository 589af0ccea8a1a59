"""Prices where a compiler fuses: elementwise ops cost but the bytes at the ends.

    product --> add --> tanh --> product      add and tanh are one kernel, which reads
                                              the one product and writes for the other

A tensor between two ops of a kernel is never in memory, whatever its type; a cast in
front of such an op, or behind it, is part of its kernel. So traffic is charged where
the size is decided: what a kernel reads to the op outside that wrote it, what it writes
to the op outside that reads it. A chain of elementwise ops then costs as much in
float32 as in 16 bits, and stays float32.

CPUs: XLA computes 16-bit products in float32, with casts around (its compiled code has
`dot(convert(x), convert(y))`), and rounds after every op of a chain. So 16 bits save
traffic there, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from grappler_pass.costs import CostModel
from grappler_pass.costs.calls import DTYPE_BYTES, Price, TensorSpec
from grappler_pass.costs.errors import roofline_error
from grappler_pass.costs.work.op_classes import ELEMENTWISE, REDUCTIONS
from grappler_pass.graph.op_table import VIEW_OPS
from grappler_pass.graph.op_traits import is_random
from grappler_pass.graph.view import Node, Port
from grappler_pass.pricing.seconds import Pricer

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
    """Prices of a graph whose elementwise ops and casts are fused."""

    def executor_seconds(self, node: Node) -> float:
        """Return 0: what is compiled is one node."""
        return 0.0

    def price(self, node: Node, dtype: str) -> Price:
        """Return what a node takes, or adds to the kernel that it is part of."""
        model = self.model(node)
        if node.op in VIEW_OPS:
            return _FREE
        if node.op in _FUSED:
            return self._price_in_kernel(node, dtype, model)
        widened = model.profile.kind == "cpu" and dtype != "float32"
        price = model.price(self.call(node), "float32" if widened else dtype)
        moved = sum(spec.bytes_as(dtype) for spec in self._shared_with_kernels(node))
        if widened:
            moved += self._widened_bytes(node)
        # The bandwidth that generated code reaches, whatever the type.
        bandwidth = model.profile.roofline.bytes_per_second["float32"]
        seconds = price.seconds + moved / bandwidth
        return price._replace(seconds=seconds)

    def cast_price(self, port: Port, source: str, target: str) -> Price:
        """Return 0 where either end is fused: the cast is part of its kernel."""
        made_by = self._view.source(port, VIEW_OPS).op
        if made_by in _FUSED or not self._outside_readers(port):
            return _FREE
        return super().cast_price(port, source, target)

    def _price_in_kernel(self, node: Node, dtype: str, model: CostModel) -> Price:
        roofline = model.profile.roofline
        elements = max((spec.elements for spec in self._tensors(node)), default=1)
        arithmetic = elements / roofline.vector_flops["float32"]
        if model.profile.kind == "cpu" and dtype != "float32":
            arithmetic *= _CPU_ROUNDING
        ports = self._view.output_ports(node.index)
        ends_kernel = any(self._outside_readers(port) for port in ports)
        begins = roofline.overhead_seconds if ends_kernel else 0.0
        return Price(begins + arithmetic, "roofline", roofline_error(model.profile))

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
        for output in range(self._slots.output_count(node.index)):
            yield self.spec(Port(node.index, output))

    def _widened_bytes(self, node: Node) -> int:
        """Return the traffic of widening what a node reads and narrowing its results.

        Where an end is fused that is part of a kernel, but takes its time all the same.
        """
        per_element = DTYPE_BYTES["float32"] + DTYPE_BYTES[self._low_dtype]
        floats = (spec for spec in self._tensors(node) if spec.dtype == "float32")
        return per_element * sum(spec.elements for spec in floats)

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
