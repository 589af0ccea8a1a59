"""Cut the parts of a large graph out of it that matter most to its plan.

A part is a run of nodes in topological order, all of one loop's body or all outside of
loops; a body is run once. What it reads from elsewhere becomes data of the same type
and shape; what tells shapes and indices comes along. In the rewritten graph the same
nodes are taken, with the casts beside them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.draft import Trial
from grappler_pass.graph import Frame, GraphView, Item, Node, Port
from grappler_pass.loops import passes_on
from grappler_pass.op_traits import has_effects
from grappler_pass.shapes import Shape, known_shape
from grappler_pass.type_slots import FLOATING, signature_of
from tf_amp.tuning.roles import OPAQUE
from tf_amp.tuning.sandbox import NotRunnable

# Nodes that only make sense with all of their loop or branch.
_CONTROL_FLOW = frozenset(
    "Enter Exit Merge NextIteration Switch LoopCond RefEnter RefExit RefMerge "
    "RefNextIteration RefSwitch".split()
)
# Their result has the shape of what they read first.
_SHAPED_LIKE = frozenset({"Enter", "Identity", "Merge", "Switch"})


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a graph.

    Attributes:
      trial: of the part, run once.
      runs: how often a step of the whole graph runs it.
    """

    trial: Trial
    runs: float

    @property
    def gain(self) -> float:
        """Seconds that the part is predicted to save in a step of the whole graph."""
        return self.runs * (self.trial.seconds_before - self.trial.seconds_after)


def parts_of(trial: Trial, longest_seconds: float) -> Iterator[Part]:
    """Yield the parts of a graph, those with the largest predicted gain first.

    Args:
      trial: the whole graph, with predictions by node.
      longest_seconds: what one step of a part may take, before and after together.

    Raises:
      GraphError: it is not a graph.
    """
    before = GraphView.from_graph_def(trial.before, trial.item)
    after = GraphView.from_graph_def(trial.after, trial.item)
    windows = sorted(
        _windows(before, trial, longest_seconds),
        key=lambda window: -_gain(trial, window),
    )
    for window in windows:
        if _gain(trial, window) > 0.0:
            with contextlib.suppress(NotRunnable):
                yield _part(trial, before, after, window)


def _windows(
    view: GraphView, trial: Trial, longest_seconds: float
) -> Iterator[tuple[str, ...]]:
    """Yield runs of nodes of one frame that each take about as long as allowed."""
    windows: dict[Frame | None, list[str]] = defaultdict(list)
    seconds: dict[Frame | None, float] = defaultdict(float)
    for i in view.order:
        node = view.nodes[i]
        if not _may_be_cut(view, node):
            continue
        frame = view.frame(i)
        took = sum(trial.nodes.get(node.name, (0.0, 0.0))) / view.weight(i)
        if windows[frame] and seconds[frame] + took > longest_seconds:
            yield tuple(windows.pop(frame))
            seconds.pop(frame)
        windows[frame].append(node.name)
        seconds[frame] += took
    yield from map(tuple, windows.values())


def _may_be_cut(view: GraphView, node: Node) -> bool:
    if node.op in _CONTROL_FLOW or has_effects(node.op):
        return False
    if view.frame(node.index) is None:
        return True
    # A loop's handles and lists cannot be made up; its counters need not be.
    signature = signature_of(node.proto)
    types = {port.dtype for port in (*signature.inputs, *signature.outputs)}
    return bool(types & FLOATING) and not types & OPAQUE


def _gain(trial: Trial, names: Iterable[str]) -> float:
    return _seconds(trial, names, 0) - _seconds(trial, names, 1)


def _seconds(trial: Trial, names: Iterable[str], which: int) -> float:
    return sum(trial.nodes.get(name, (0.0, 0.0))[which] for name in names)


def _part(
    trial: Trial, before: GraphView, after: GraphView, names: Sequence[str]
) -> Part:
    chosen = frozenset(names)
    beside = _made_beside(before, after, chosen)
    cut_before = _Cut(before, before, chosen, trial)
    cut_after = _Cut(after, before, chosen | beside, trial)
    roots = sorted({*cut_before.roots(), *cut_after.roots()})
    runs = before.weight(before.index[names[0]])
    seconds_before = _seconds(trial, names, 0)
    share = seconds_before / trial.seconds_before
    once = dataclasses.replace(
        trial,
        before=cut_before.graph_def,
        after=cut_after.graph_def,
        item=Item(fetch=tuple(roots)),
        shapes={**trial.shapes, **cut_before.shapes, **cut_after.shapes},
        seconds_before=seconds_before / runs,
        seconds_after=_seconds(trial, names, 1) / runs,
        peak_bytes=int(share * trial.peak_bytes),
        nodes={},
    )
    return Part(once, runs)


def _made_beside(
    before: GraphView, after: GraphView, chosen: frozenset[str]
) -> frozenset[str]:
    """Name the nodes that the rewrite has put around those chosen."""
    made: set[str] = set()
    waiting = [after.index[name] for name in chosen if name in after.index]
    while waiting:
        i = waiting.pop()
        readers = (
            reader.node
            for port in after.output_ports(i)
            for reader in after.readers(port)
        )
        sources = (port.node for port in after.nodes[i].inputs)
        for neighbor in (*readers, *sources):
            name, op = after.nodes[neighbor].name, after.nodes[neighbor].op
            if op in _CONTROL_FLOW or name in before.index:
                continue
            if name not in made:
                made.add(name)
                waiting.append(neighbor)
    return frozenset(made)


class _Cut:
    """A graph of chosen nodes, and of what they cannot do without."""

    def __init__(
        self,
        view: GraphView,
        before: GraphView,
        chosen: frozenset[str],
        trial: Trial,
    ) -> None:
        self._view = view
        self._before = before
        self._chosen = chosen
        self._trial = trial
        self.graph_def = GraphDef(
            versions=trial.before.versions, library=trial.before.library
        )
        self.shapes: dict[str, tuple[Shape | None, ...]] = {}
        self._taken: set[int] = set()
        for name in chosen:
            if name in view.index:
                self._take(view.index[name])
        self._write()

    def roots(self) -> list[str]:
        """Name what has to run: the chosen nodes that none of the others waits for."""
        read = {p.node for i in self._taken for p in self._view.nodes[i].inputs}
        nodes = (self._view.nodes[i] for i in self._taken - read)
        return [node.name for node in nodes if node.name in self._chosen]

    def _take(self, start: int) -> None:
        """Take a node, and what it reads that cannot be made up."""
        waiting = [start]
        while waiting:
            i = waiting.pop()
            if i in self._taken:
                continue
            self._taken.add(i)
            for port in map(self._origin, self._view.nodes[i].inputs):
                if not self._is_made_up(port):
                    waiting.append(port.node)

    def _origin(self, port: Port) -> Port:
        """Return where a value that is no number to compute with comes from.

        What a loop has got from outside, and does not change, is the same there.
        """
        node = self._view.nodes[port.node]
        if _dtype(node, port.output) in FLOATING or self._view.frame(port.node) is None:
            return port
        while node.op == "Switch" or passes_on(self._view.nodes, node):
            port = node.inputs[0]
            node = self._view.nodes[port.node]
        return port

    def _is_made_up(self, port: Port) -> bool:
        node = self._view.nodes[port.node]
        if node.name in self._chosen or node.op == "Const":
            return False
        if _dtype(node, port.output) in FLOATING:
            return True
        if node.op not in _CONTROL_FLOW:
            return False
        # What changes from iteration to iteration is a counter, or an index.
        if self._view.frame(port.node) is None or _dtype(node, port.output) in OPAQUE:
            raise NotRunnable(f"{node.name!r} cannot be cut off")
        return True

    def _write(self) -> None:
        made: set[str] = set()
        for i in sorted(self._taken):
            node = self._view.nodes[i]
            copy = self.graph_def.node.add()
            copy.CopyFrom(node.proto)
            del copy.input[:]
            for port in map(self._origin, node.inputs):
                copy.input.append(self._text(port, made))

    def _text(self, port: Port, made: set[str]) -> str:
        node = self._view.nodes[port.node]
        if port.node in self._taken:
            return f"{node.name}:{port.output}" if port.output else node.name
        dtype = _dtype(node, port.output)
        kind = types_pb2.DataType.Name(dtype)
        name = f"tf_amp_cut/{node.name}/{port.output}/{kind}"
        if name not in made:
            made.add(name)
            source = self.graph_def.node.add(
                name=name, op="Placeholder", device=node.device
            )
            source.attr["dtype"].type = dtype
            self.shapes[name] = (self._shape(port),)
        return name

    def _shape(self, port: Port) -> Shape | None:
        """Return a port's shape, or that of what its readers had before the rewrite."""
        shape = self._known_shape(self._view, port)
        for reader in self._view.readers(port):
            twin = self._before.index.get(self._view.nodes[reader.node].name)
            if shape is None and twin is not None:
                read = self._before.nodes[twin].inputs[reader.input]
                shape = self._known_shape(self._before, read)
        return shape

    def _known_shape(self, view: GraphView, port: Port) -> Shape | None:
        """Return a port's shape; of what a loop changes, as it was at the beginning."""
        node = view.nodes[port.node]
        shape = known_shape(self._trial.shapes, view, port)
        if shape is None and node.op in _SHAPED_LIKE:
            return self._known_shape(view, node.inputs[0])
        return shape


def _dtype(node: Node, output: int) -> int:
    outputs = signature_of(node.proto).outputs
    return outputs[output].dtype if output < len(outputs) else types_pb2.DT_INVALID
