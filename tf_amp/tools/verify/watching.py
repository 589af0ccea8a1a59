"""Which tensors of a graph are compared: what it returns, and what updates variables.

A gradient is what the arithmetic of an optimizer begins with: from the value that an
update writes one goes back to what does not belong to the update alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping

import tensorflow as tf

from grappler_pass.annotations import BARRIER
from grappler_pass.eligibility.regions import UNREACHED, state_update_region
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import EXIT_OPS, REF_VARIABLE_OPS, RESULT_OPS
from grappler_pass.graph.op_traits import input_behind, is_update, passes_on
from grappler_pass.graph.shapes import Shape, Shapes, known_shape
from grappler_pass.graph.type_slots import FLOAT32, op_def_of, signature_of
from grappler_pass.graph.view import Graph, Node, Port, Reader
from grappler_pass.graph.walks import reached
from tf_amp.run.graph_cases import Watched
from tf_amp.tools.verify.verification import GRADIENT, OUTPUT
from tf_amp.tracing.stamp_reader import is_gradient
from tf_amp.training.overflow_search import hidden_nodes
from tf_amp.training.scale_state import PREFIX as LOSS_SCALE

UPDATE = "update"
_SCOPES = ("gradient_tape/", "gradients/", "gradients_")
_VARIABLES = REF_VARIABLE_OPS | {"Const", "ReadVariableOp", "_Arg"}


def outputs_of(
    view: Graph, fetches: Iterable[str], names: Mapping[str, str] | None = None
) -> Iterator[Watched]:
    """Yield the tensors that some nodes give to the caller.

    They may have human-readable names, by `node:output`.
    """
    for name in dict.fromkeys(fetches):
        node = view.nodes[view.index[name]] if name in view.index else None
        if node is None or view.frame(node.index) is not None:
            continue
        if node.op in RESULT_OPS:
            if _is_comparable(signature_of(node.proto).inputs[0].dtype):
                yield Watched(name.removesuffix("_RetVal"), OUTPUT, name, 0)
            continue
        for number, arg in enumerate(signature_of(node.proto).outputs):
            if _is_comparable(arg.dtype):
                label = f"{name}:{number}" if number else name
                label = (names or {}).get(f"{name}:{number}", label)
                yield Watched(label, OUTPUT, name, None, number)


def gradients_of(
    view: Graph, lists: OpLists, shapes: Shapes, variables: Mapping[str, str]
) -> tuple[Watched, ...]:
    """Return the tensors that update variables of a training step, each once.

    The lists bound the arithmetic of updates; variables have human-readable names by
    name of the handle.
    """
    hidden = frozenset(hidden_nodes(view, view.order))
    search = _Search(view, state_update_region(view, lists), shapes, hidden)
    by_port: dict[Port, tuple[bool, Watched]] = {}
    updates = (
        node
        for node in view.nodes
        if is_update(node.op) and view.frame(node.index) is None
    )
    for update in updates:
        gradient = search.gradient_of(update, variables)
        if gradient is None:
            continue
        watched, port = gradient
        is_trained = search.is_read_outside(update)
        if port not in by_port or is_trained > by_port[port][0]:
            by_port[port] = (is_trained, watched)
    # Gradients, then other updates, each under a name of its own.
    ranked = sorted(
        (watched for _, watched in by_port.values()), key=lambda w: w.kind != GRADIENT
    )
    named: dict[str, Watched] = {}
    for watched in ranked:
        again = (f"{watched.name} ({number})" for number in itertools.count(2))
        names = itertools.chain([watched.name], again)
        name = next(name for name in names if name not in named)
        named[name] = dataclasses.replace(watched, name=name)
    return tuple(named.values())


@dataclasses.dataclass(frozen=True, eq=False)
class _Search:
    """Finds what updates begin with."""

    view: Graph
    region: list[int]
    shapes: Shapes
    hidden: frozenset[int]

    def gradient_of(
        self, update: Node, variables: Mapping[str, str]
    ) -> tuple[Watched, Port] | None:
        """Return the gradient of an update, or what it writes if there is none."""
        op_def = op_def_of(update.op)
        names = [] if op_def is None else [arg.name for arg in op_def.input_arg]
        # The gradient, or the value that is written.
        brings = ("grad", "value", "updates", "delta")
        places = [names.index(each) for each in brings if each in names]
        present = (place for place in places if place < len(update.inputs))
        place = next(present, None)
        if place is None:
            return None
        start = Reader(update.index, place)
        reader = self._nearest(start, self._shape(update.inputs[start.input]))
        if reader is None:
            return None
        port = self._read_by(reader)
        source = self.view.nodes[port.node]
        if source.op in _VARIABLES or port.node in self.hidden:
            return None
        if signature_of(source.proto).outputs[port.output].dtype != FLOAT32:
            return None
        handle = self._handle(update)
        own_name = variables.get(handle.name, handle.name)
        if LOSS_SCALE in own_name:
            return None
        name = _trained(own_name, variables)
        is_moment = name != own_name
        kind = GRADIENT if is_moment or self._is_gradient(source) else UPDATE
        where = self.view.nodes[reader.node].name
        return Watched(name, kind, where, reader.input), port

    def is_read_outside(self, update: Node) -> bool:
        """Tell whether results depend on the variable, as on a weight."""
        handle = self._handle(update)
        for reader in self.view.readers(Port(handle.index, 0)):
            node = self.view.nodes[reader.node]
            if not is_update(node.op) and self.region[node.index] == UNREACHED:
                return True
        return False

    def _nearest(self, start: Reader, shape: Shape | None) -> Reader | None:
        """Return where the region begins, nearest to an update, with its shape.

        `start` where another shape is all there is; None where nothing but variables
        is read, as for a weight whose gradient has gone into a moment.
        """

        def before(reader: Reader) -> list[Reader]:
            node = self.view.nodes[self._read_by(reader).node]
            inputs = () if self._begins(node) else range(len(node.inputs))
            return [Reader(node.index, position) for position in inputs]

        others = False
        for reader in reached([start], before):
            port = self._read_by(reader)
            node = self.view.nodes[port.node]
            if self._begins(node) and node.op not in _VARIABLES:
                # Equal, as far as both are known.
                if tf.TensorShape(self._shape(port)).is_compatible_with(shape):
                    return reader
                others = True
        return start if others else None

    def _begins(self, node: Node) -> bool:
        # The moment of second order is made of squares of the gradient.
        if node.index in self.hidden or node.op == "Square":
            return False
        if node.op in EXIT_OPS or self._is_gradient(node):
            return True
        return self.region[node.index] == UNREACHED

    def _is_gradient(self, node: Node) -> bool:
        if BARRIER in node.proto.attr or is_gradient(self.view, node):
            return True
        return any(scope in node.name for scope in _SCOPES)

    def _read_by(self, reader: Reader) -> Port:
        return self._source(self.view.nodes[reader.node].inputs[reader.input])

    def _source(self, port: Port) -> Port:
        node = self.view.nodes[port.node]
        while passes_on(node.op) and node.inputs:
            port = node.inputs[input_behind(node.op, port.output)]
            node = self.view.nodes[port.node]
        return port

    def _handle(self, update: Node) -> Node:
        return self.view.nodes[self._source(update.inputs[0]).node]

    def _shape(self, port: Port) -> Shape | None:
        return known_shape(self.shapes, self.view, port)


def _trained(name: str, variables: Mapping[str, str]) -> str:
    """Return the variable that an optimizer's variable is named after, or its name.

    Keras calls the moment of `head/kernel` `adam/head_kernel_momentum`, or
    `Adam/m/head/kernel`.
    """
    last = name.rpartition("/")[2]
    trained = (
        known
        for known in variables.values()
        if known.replace("/", "_") in last or name.endswith(f"/{known}")
    )
    return max((known for known in trained if known != name), key=len, default=name)


def _is_comparable(dtype: int) -> bool:
    """Tell a tensor of numbers, truth values or text from a handle."""
    return bool(dtype) and tf.dtypes.as_dtype(dtype).is_numpy_compatible
