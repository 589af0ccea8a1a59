"""Predict the most bytes that a graph holds at once, by a schedule of its nodes.

The nodes run as threads of TensorFlow's executor run them. A tensor lives from the
start of the node that writes it to the end of its last reader. Views share the tensor
that they look at. An elementwise op writes over an operand of its size and type that
nothing else reads. A cast copies.

Plans say what two threads hold; more hold more. Where memory is saved, a single thread
is asked: it leaves for later what a second one runs at once, as gradients of weights.

    held before a step   variables, inputs and constants of the graph
    added by it          outputs of operations; copies of variables

A variable is copied where it is updated while its old value is still to be read. So is
one whose rows are updated, by each op that reads all of it: TensorFlow's kernels do so.

A loop counts with one iteration, and with what its lists hold after all of them: what
iterations compute side by side is not known. Sizes that are unknown are guessed as for
prices. Not counted are what kernels allocate for themselves, functions that are called,
and what the allocator adds when it rounds sizes up.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tensorflow.core.framework.types_pb2 import DT_RESOURCE

from grappler_pass.costs.calls import DTYPE_BYTES, TensorSpec
from grappler_pass.costs.op_classes import ELEMENTWISE, FREE_OPS
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_traits import is_update
from grappler_pass.graph.shapes import (
    Shapes,
    known_shape,
    shape_from_proto,
    variable_shape,
)
from grappler_pass.graph.type_slots import dtype_name, signature_of
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.graph.walks import reached
from grappler_pass.kept_kernels import KEEP, KEPT
from grappler_pass.planning.draft import Draft
from grappler_pass.planning.executor import executed

# Of TensorFlow's executor, where a plan says what a step holds.
THREADS = 2

_LOW_BYTES = 2
# Each output is what an input is, or a part of it: output i of input i for IdentityN,
# else of the first.
_VIEWS = (
    table.ALIASING_OPS
    | table.EXCHANGE_OPS
    | table.POPPED_OUTPUT.keys()
    | {"TensorArrayGradV3", "TensorListPushBack", "TensorListSetItem"}
)
_SPREADS = frozenset({"TensorListFromTensor", "TensorListSplit"})
_REUSES = frozenset({*ELEMENTWISE, "AddN", "BiasAdd", "Softmax", "LogSoftmax"})
_BY_ROWS = ("Gather", "Scatter", "Sparse", "StridedSliceAssign")
# Nodes that are added to a graph are called after one of it, behind this.
_ADDED = "/tf_amp_"
# The output of oneDNN's normalization that is its ReLU's mask: a float32 for so many
# elements.
_MASK, _MASKED = 5, 8
_SAME_SIZE = frozenset({"Cast", "Enter", "Transpose"})
# The duration of a node decides only which nodes run beside it. It is counted in bytes
# moved: to start a node takes as long as these, a byte of a product as long as ten.
_START_BYTES, _PRODUCT_BYTES = 45e3, 10.0
_PASSING = table.FORWARDING_OPS | table.MERGE_OPS


class LiveSet(NamedTuple):
    """The most bytes that are held at once.

    Attributes:
      size: of all tensors.
      held: of it, variables, inputs and constants, which are there before the step.
      copies: of it, 16-bit copies of variables and of what is computed of them alone.
    """

    size: int
    held: int
    copies: int


class Peak(NamedTuple):
    """The moment of a step at which most is held.

    Attributes:
      held: tensors that a node of the step has written and a later one still reads, by
        their bytes.
      order: nodes in the order in which they run.
      past: how many of them have run by then.
      size: returns the bytes of any tensor.
      live_set: what is held then, in bytes.
    """

    held: Mapping[Port, int]
    order: tuple[int, ...]
    past: int
    size: Callable[[Port], int]
    live_set: LiveSet

    @property
    def late(self) -> tuple[int, ...]:
        """Nodes that run later, in order."""
        return self.order[self.past :]


def predict_live_sets(draft: Draft) -> Draft:
    """Return a draft whose plan says what a step holds as given and rewritten.

    Unchanged where nobody asks, and where XLA compiles the graph: what it fuses is not
    held.
    """
    settings = draft.settings
    if not settings.predicts_memory or settings.fuses or draft.prices is None:
        return draft
    before = after = largest_live_set(draft.view_of(draft.given), draft.shapes, THREADS)
    if draft.rewritten is not draft.given:
        after = largest_live_set(draft.view_of(draft.rewritten), draft.shapes, THREADS)
    plan = dataclasses.replace(
        draft.plan,
        peak_bytes_before=before.size,
        peak_bytes_after=after.size,
        held_bytes=after.held,
        weight_bytes_after=after.copies,
    )
    return dataclasses.replace(draft, plan=plan)


def largest_live_set(view: Graph, shapes: Shapes, threads: int = 1) -> LiveSet:
    """Return the most bytes that a graph holds at once.

    Args:
      view: the graph; what its item relies on is run.
      shapes: static shapes by name of node. A cast or a transpose without one writes as
        many elements as it reads, another node as the one that it is called after.
      threads: that run it.
    """
    return peak_of(view, shapes, threads).live_set


def peak_of(view: Graph, shapes: Shapes, threads: int = 1) -> Peak:
    """Return the moment at which a graph holds most; arguments as above."""
    step, most, count = _Step(view, shapes), 0, 0
    started, running = list[int](), dict[int, Callable[[], None]]()
    for number in executed(view, step.nodes, step.duration, threads):
        if number in running:
            running.pop(number)()
            continue
        started.append(number)
        running[number] = step.start(view.nodes[number])
        if step.most > most:
            most, count = step.most, len(started)
    order = tuple(started)
    late = frozenset(order[count:])
    return Peak(
        {
            port: step.size(port)
            for number in order[:count]
            for port in view.output_ports(number)
            if any(reader.node in late for reader in view.readers(port))
        },
        order,
        count,
        step.size,
        LiveSet(step.held + step.most, step.held, step.copies_at_most),
    )


@dataclasses.dataclass(slots=True, eq=False)
class _Buffer:
    """Bytes that are held until their last reader has run.

    Attributes:
      size: in bytes.
      runs: how often a step writes it.
      readers: that have not run; a list reads what it holds.
      stays: whether it is there when the step is over.
      is_copy: whether it is a variable's value in 16 bits.
      holds: of a list, its elements.
    """

    size: int
    runs: float = 1.0
    readers: int = 0
    stays: bool = False
    is_copy: bool = False
    holds: list[_Buffer] = dataclasses.field(default_factory=list)


class _Step:
    """What one step of a graph holds while its nodes run.

    Attributes:
      nodes: that are run.
      held: bytes that are there before the step.
      most: bytes that it adds at most.
      copies_at_most: of them, 16-bit copies of variables.
    """

    def __init__(self, view: Graph, shapes: Shapes) -> None:
        fed = {view.index[name] for name in view.item.feed if name in view.index}
        self.nodes = frozenset(
            reached(view.roots, lambda i: () if i in fed else view.nodes[i].sources)
        )
        self.held = self.most = self.copies_at_most = 0
        self._view, self._shapes = view, shapes
        self._alive = self._copies = 0
        self._buffers: dict[Port, _Buffer] = {}
        self._of_variables: set[Port] = set()
        self._variables: dict[int, _Buffer] = {}
        self._by_rows: set[int] = set()
        self._reads: Counter[Port] = Counter()
        for number in self.nodes:
            node = view.nodes[number]
            if node.op not in table.MERGE_OPS:
                self._reads.update(node.inputs)
            else:
                self._reads.update(
                    port
                    for port in node.inputs
                    if view.nodes[port.node].op not in table.NEXT_ITERATION_OPS
                )
            if any(part in node.op for part in _BY_ROWS):
                self._by_rows.update(map(self._variable, node.inputs[:1]))
        for number in sorted(self.nodes):
            self._hold(view.nodes[number])

    def _hold(self, node: Node) -> None:
        """Count what is there before the step."""
        view = self._view
        is_input = node.op in table.INPUT_OPS or node.name in view.item.feed
        is_variable = node.op in table.VARIABLE_OPS
        if is_input or is_variable or node.op in table.CONSTANT_OPS:
            for port in _outputs(node):
                buffer = _Buffer(self.size(port), stays=True)
                if view.dtype(port) == DT_RESOURCE:
                    buffer.size = _variable_bytes(node)
                    self._variables[node.index] = buffer
                else:
                    self._buffers[port] = buffer
                self.held += buffer.size
        elif node.op == "ReadVariableOp":
            variable = self._variables.get(self._variable(node.inputs[0]))
            if variable is not None and not variable.size:
                # Its handle does not say how large it is.
                variable.size = self.size(Port(node.index, 0))
                self.held += variable.size

    def duration(self, node: Node) -> float:
        """Return how long a node takes, counted in bytes moved.

        The host of a GPU waits for nothing but its start.
        """
        if node.op in FREE_OPS or node.op in _VIEWS:
            return 0.0
        if node.device_type == "GPU":
            return _START_BYTES
        # What an unknown op writes has no known type.
        read = (port for port in node.inputs if port in self._buffers)
        ports = (*read, *_outputs(node))
        weight = _PRODUCT_BYTES if node.op in table.PRODUCT_OPS else 1.0
        return _START_BYTES + weight * sum(map(self.size, ports))

    def start(self, node: Node) -> Callable[[], None]:
        """Let a node write its outputs; return what lets go of what it has read."""
        read = [self._buffers.get(port) for port in node.inputs]
        replaced = self._replaced(node) if is_update(node.op) else []
        outputs = _outputs(node)
        varying = {
            port
            for port in node.inputs
            if self._view.nodes[port.node].op not in table.CONSTANT_OPS
        }
        if node.op == "ReadVariableOp" or node.op in table.REF_VARIABLE_OPS:
            self._of_variables.update(outputs)
        elif varying and varying <= self._of_variables:
            self._of_variables.update(outputs)
        for port in outputs:
            buffer = self._buffers.get(port) or self._written(node, port, read)
            self._buffers[port] = buffer
            buffer.readers += self._reads[port]
            buffer.stays |= node.name in self._view.item.fetch
        if node.op in table.PUSHED_INPUT:
            self._push(node, read)
        if self._alive > self.most:
            self.most, self.copies_at_most = self._alive, self._copies
        buffers = [self._buffers[port] for port in outputs]

        def end() -> None:
            for buffer in buffers:
                self._let_go(buffer)
            for buffer in filter(None, [*read, *replaced]):
                buffer.readers -= 1
                buffer.stays |= node.op in table.RESULT_OPS or node.op == KEEP
                self._let_go(buffer)

        return end

    def _written(
        self, node: Node, port: Port, read: Sequence[_Buffer | None]
    ) -> _Buffer:
        """Return the buffer of an output, a new one or one that is there."""
        if node.op in _VIEWS and read:
            # What comes around a loop into a Merge is not known yet.
            first = next((buffer for buffer in read if buffer is not None), None)
            seen = read[port.output] if node.op == "IdentityN" else first
            return seen or _Buffer(0)
        if node.op == "ReadVariableOp":
            variable = self._variable(node.inputs[0])
            if variable in self._variables and variable not in self._by_rows:
                return self._variables[variable]
        source = node.inputs[0] if node.op in _SPREADS else port
        # What is kept between calls stays where it was computed.
        size = 0 if node.op == KEPT else self.size(source)
        if node.op in _REUSES:
            for operand, buffer in zip(node.inputs, read, strict=True):
                if (
                    buffer is not None
                    and (buffer.size, buffer.readers, buffer.stays) == (size, 1, False)
                    and self._view.dtype(operand) == self._view.dtype(port)
                ):
                    return buffer
        is_low = self._width(port) == _LOW_BYTES
        return self._new(size, node, is_copy=is_low and port in self._of_variables)

    def _replaced(self, node: Node) -> list[_Buffer]:
        """Copy variables whose old value an update may not write over; return these."""
        is_by_rows = any(part in node.op for part in _BY_ROWS)
        replaced: list[_Buffer] = []
        for port in node.inputs:
            handle = self._variable(port)
            before = self._variables.get(handle)
            if before is None or self._view.dtype(port) != DT_RESOURCE:
                continue
            if before.readers or (handle in self._by_rows and not is_by_rows):
                after = self._new(before.size, node)
                after.stays, before.stays = True, False
                before.readers += 1
                self._variables[handle] = after
                replaced.append(before)
        return replaced

    def _push(self, node: Node, read: Sequence[_Buffer | None]) -> None:
        """Let a list hold as many elements as a loop pushes.

        What a loop pushes without writing it anew is one tensor, held once.
        """
        first, holder = read[table.PUSHED_INPUT[node.op]], read[0]
        if first is None or holder is None:
            return
        others = min(self._view.weight(node.index), first.runs) - 1.0
        elements = [first, self._new(int(first.size * others), node)]
        for element in elements:
            element.readers += 1
        holder.holds += elements

    def _new(self, size: int, node: Node, *, is_copy: bool = False) -> _Buffer:
        self._alive += size
        self._copies += size * is_copy
        return _Buffer(size, self._view.weight(node.index), is_copy=is_copy)

    def _let_go(self, buffer: _Buffer) -> None:
        """Free a buffer that nothing reads any more, and what it holds."""
        if buffer.readers or buffer.stays:
            return
        self._alive -= buffer.size
        self._copies -= buffer.size * buffer.is_copy
        buffer.size = 0
        while buffer.holds:
            element = buffer.holds.pop()
            element.readers -= 1
            self._let_go(element)

    def _variable(self, port: Port) -> int:
        """Return the node that a handle comes from, also around loops."""
        return self._view.source(port, _PASSING).index

    def size(self, port: Port) -> int:
        """Return the bytes of a tensor."""
        return self._elements(port) * self._width(port)

    def _width(self, port: Port) -> int:
        return DTYPE_BYTES.get(dtype_name(self._view.dtype(port)), 4)

    def _elements(self, port: Port) -> int:
        node = self._view.nodes[port.node]
        while node.name not in self._shapes:
            # It is new: a cast or a transpose, a part of a node, or a constant.
            whole = node.name.partition(_ADDED)[0]
            if node.op in _SAME_SIZE and node.inputs:
                port = node.inputs[0]
            elif whole in self._shapes and whole in self._view.index:
                last = len(self._shapes[whole]) - 1
                port = Port(self._view.index[whole], min(port.output, last))
            else:
                break
            node = self._view.nodes[port.node]
        if is_relu_mask(node, port):
            return self._elements(Port(port.node, 0)) // _MASKED
        shape = known_shape(self._shapes, self._view, port)
        if shape is None and node.op == "Const":
            shape = shape_from_proto(node.proto.attr["value"].tensor.tensor_shape)
        return TensorSpec(shape, "").elements


def _outputs(node: Node) -> list[Port]:
    count = len(signature_of(node.proto).outputs)
    return [Port(node.index, output) for output in range(count)]


def is_relu_mask(node: Node, port: Port) -> bool:
    """Return whether a tensor says where the ReLU fused into a normalization is 0."""
    return node.op == "_FusedBatchNormEx" and port.output == _MASK


def _variable_bytes(node: Node) -> int:
    """Return the size of the variable that a node hands out; 0 if it is not known."""
    shape = variable_shape(node.proto)
    attr = node.proto.attr
    types = attr["_handle_dtypes"].list.type if "_handle_dtypes" in attr else ()
    dtype = types[0] if types else attr["dtype"].type if "dtype" in attr else 0
    if shape is None or not dtype:
        return 0
    return TensorSpec(shape, "").elements * DTYPE_BYTES.get(dtype_name(dtype), 4)
