"""What a planned step would take if XLA fused it, as published figures often have it.

XLA computes chains of elementwise ops, data movement and the reductions that end them
in one kernel, so that what lies between two of them never reaches memory. Products,
convolutions and whatever else has a kernel of its own keep their prices.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from grappler_pass.costs import op_classes
from grappler_pass.costs.calls import DTYPE_BYTES, TensorSpec
from grappler_pass.costs.times import Roofline
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.type_slots import NO_SLOT
from grappler_pass.graph.view import Port
from grappler_pass.planning.draft import Draft

_REDUCING = frozenset(
    {
        *op_classes.REDUCTIONS,
        *op_classes.SOFTMAX,
        *op_classes.CROSS_ENTROPY,
        "BiasAddGrad",
        "L2Loss",
    }
)
_FUSED = frozenset(
    {*op_classes.ELEMENTWISE, *op_classes.MOVEMENT, "BiasAdd", "AddN", "Cast"}
    | _REDUCING
)
_ALIASES = frozenset({"Reshape", "ExpandDims", "Squeeze", "Identity", "StopGradient"})


def fused_seconds(draft: Draft, roofline: Roofline, *, mixed: bool) -> float:
    """Return seconds per step with fusion.

    Args:
        draft: a planned graph.
        roofline: of the device it was planned for.
        mixed: under the plan; else in float32.
    """
    return sum(_Fusion(draft, roofline, mixed).seconds())


class _Fusion:
    """The look-ups that one estimate shares."""

    def __init__(self, draft: Draft, roofline: Roofline, mixed: bool) -> None:
        self._draft, self._view = draft, draft.view
        self._roofline, self._mixed = roofline, mixed
        self._source = self._sources()
        self._cluster = self._clusters()

    def seconds(self) -> Iterator[float]:
        """Yield the seconds of kernels, of clusters and of the casts left over."""
        low = self._draft.low
        for node in self._view.nodes:
            if node.op in _FUSED:
                continue
            slots = self._draft.slots.slots_of[node.index]
            price = self._draft.prices.low[node.index]
            is_low = self._mixed and any(low[slot] for slot in slots)
            float32 = self._draft.prices.float32[node.index]
            yield price if is_low and price is not None else float32
        rate = self._roofline.bytes_per_second["float32"]
        for moved in self._traffic().values():
            yield self._roofline.overhead_seconds + moved / rate
        if self._mixed:
            yield from self._lone_casts()

    def _sources(self) -> dict[int, Port]:
        """Return what each node that only renames a tensor takes it from."""
        found: dict[int, Port] = {}
        for index in self._view.order:
            node = self._view.nodes[index]
            if node.op in _ALIASES and node.inputs:
                found[index] = self._root(node.inputs[0], found)
        return found

    @staticmethod
    def _root(port: Port, sources: dict[int, Port]) -> Port:
        return sources.get(port.node, port)

    def _inputs(self, index: int) -> list[Port]:
        ports = self._view.nodes[index].inputs
        return [self._root(port, self._source) for port in ports]

    def _clusters(self) -> Sequence[int]:
        """Return the number of the cluster of every node.

        A product, or a reduction whose result is spread out again, ends a kernel: what
        reads it is one level further.
        """
        level = [0] * len(self._view.nodes)
        pairs = []
        for index in self._view.order:
            for port in self._inputs(index):
                producer = self._view.nodes[port.node]
                ends = producer.op not in _FUSED or producer.op in _REDUCING
                is_free = producer.op in op_classes.FREE_OPS
                step = int(ends and not is_free)
                level[index] = max(level[index], level[port.node] + step)
        for node in self._view.nodes:
            for port in self._inputs(node.index):
                both = node.op in _FUSED and self._view.nodes[port.node].op in _FUSED
                if both and level[node.index] == level[port.node]:
                    pairs.append((node.index, port.node))
        rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
        count = len(level)
        graph = coo_matrix(([1] * len(pairs), (rows, columns)), shape=(count, count))
        return list(connected_components(graph, directed=False)[1])

    def _traffic(self) -> dict[int, float]:
        """Return the bytes that every cluster reads and writes."""
        crossing: dict[int, set[Port]] = defaultdict(set)
        for node in self._view.nodes:
            for port in self._inputs(node.index):
                producer = self._view.nodes[port.node]
                here, there = self._cluster[node.index], self._cluster[port.node]
                if here == there:
                    continue
                if node.op in _FUSED:
                    crossing[here].add(port)
                if producer.op in _FUSED and node.op not in _ALIASES:
                    crossing[there].add(port)
        return {
            cluster: sum(map(self._bytes, ports)) for cluster, ports in crossing.items()
        }

    def _bytes(self, port: Port) -> float:
        view, slots = self._view, self._draft.slots
        if view.nodes[port.node].op == "Const":
            return 0.0
        shape = known_shape(self._draft.shapes, view, port)
        slot = slots.output_slot(*port)
        is_low = self._mixed and slot != NO_SLOT and self._draft.low[slot]
        width = DTYPE_BYTES["float16"] if is_low else DTYPE_BYTES["float32"]
        return float(width * TensorSpec(shape, "float32").elements)

    def _lone_casts(self) -> Iterator[float]:
        """Yield the casts with no fused op at either end: those of weights."""
        prices = self._draft.prices
        for cast in self._draft.casts.conversions:
            ends = [cast.port.node, *(reader.node for reader in cast.readers)]
            if cast.is_identity or any(self._view.nodes[e].op in _FUSED for e in ends):
                continue
            price = prices.casts.get(cast.port)
            yield 0.0 if price is None else price.up or price.down
