"""Graphs as cases to be run, and which of their tensors are compared.

A function is traced and optimized by Grappler, and gets the values that its variables
have. Of a script Grappler's callback has the graph that will run: what comes in from
outside (arguments, data, variables before they change) is recorded there, and run again
later. The program goes on in float32.

Compared is what a graph returns, and what updates variables. A gradient is what the
arithmetic of an optimizer begins with: from the value that an update writes one goes
back to what does not belong to the update alone.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.annotations import BARRIER
from grappler_pass.eligibility.regions import state_update_region
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import EXIT_OPS, REF_VARIABLE_OPS, RESULT_OPS
from grappler_pass.graph.op_traits import input_behind, is_update, passes_on
from grappler_pass.graph.shapes import Shape, Shapes, known_shape, shapes_from_graph_def
from grappler_pass.graph.type_slots import FLOAT32, op_def_of, signature_of
from grappler_pass.graph.view import Graph, Node, Port, Reader
from grappler_pass.graph.walks import reached
from tf_amp._tensorflow_private import tracing
from tf_amp._tensorflow_private.functions import is_compiled_function
from tf_amp.config.amp_config import AmpConfig, with_settings
from tf_amp.errors import NotMeasurableError
from tf_amp.rewriting import graph_settings, stripping
from tf_amp.rewriting.compiled import Uncompiled, WithoutXla
from tf_amp.rewriting.graph_settings import settings_under_xla
from tf_amp.run import recording
from tf_amp.run.batches import arguments_by_placeholder
from tf_amp.run.graph_cases import GraphCase, Watched, sandbox_of
from tf_amp.run.graph_copy import Array, Content
from tf_amp.run.recording import Records, Tap
from tf_amp.tools import explanation, running_scripts
from tf_amp.tools.verify.verification import GRADIENT, OUTPUT
from tf_amp.tracing import grappler_preview
from tf_amp.tracing.graph_names import name_of
from tf_amp.tracing.grappler_preview import with_bodies
from tf_amp.tracing.stamp_reader import is_gradient, variable_names, with_traced_shapes
from tf_amp.training.overflow_search import hidden_nodes
from tf_amp.training.scale_state import PREFIX as LOSS_SCALE


def case_of(
    fn: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] = explanation.NO_ARGUMENTS,
    *,
    fetches: Iterable[str] | None = None,
    settings: Mapping[str, Any] = explanation.NO_ARGUMENTS,
    values: Mapping[str, Array] | None = None,
    batch: int | None = None,
) -> GraphCase:
    """Return a function or a GraphDef as a case, given as to `tf_amp.explain`.

    Args:
      fn: a function has the values that its variables have now.
      args: what it is called with, or the fetches of a GraphDef.
      kwargs: its named arguments.
      fetches: names of nodes, for a GraphDef.
      settings: checked ones that go before those in force.
      values: of arguments, by the names that a sandbox gives them; None: those of
        `args` and `kwargs`.
      batch: stands for an unknown first dimension of the arguments.
    """
    if isinstance(fn, GraphDef):
        graph_def, fetched, name = explanation.traced_graph(fn, args, kwargs, fetches)
        fed = {f"{key}:0": np.asarray(value) for key, value in kwargs.items()}
        return _case_from_graph(graph_def, fetched, fed, settings, name=name)
    function = explanation.concrete_function(fn, args, kwargs)
    if values is None:
        values = arguments_by_placeholder(function, args, dict(kwargs))
    captured, names = captured_values(function)
    graph_def, fetched, name = explanation.traced_graph(function, batch=batch)
    return _case_from_graph(
        graph_def,
        fetched,
        {**captured, **values},
        settings,
        name=name,
        variables=names,
        outputs=_outputs_of(function),
        is_compiled=is_compiled_function(function),
    )


def captured_values(function: Any) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the values and names of a function's variables, by name of the handle.

    Other tensors that it has captured are among the values, as `node:output`.
    """
    try:
        paths = tracing.keras_paths()
        variables = {
            id(v.handle): paths.get(id(v), str(v.name))
            for v in function.graph.variables
        }
    except AssertionError:
        # Of a SavedModel that nobody holds; handles keep the values all the same.
        variables = {}
    held: dict[str, Array] = {}
    names: dict[str, str] = {}
    for outer, placeholder in function.graph.captures:
        key = placeholder.op.name
        contents = tracing.handle_contents(outer)
        if len(contents) == 1:
            held[key] = np.asarray(tracing.variable_value(outer, contents[0]))
            names[key] = variables.get(id(outer), key).partition(":")[0]
        elif hasattr(outer, "numpy") and outer.dtype.is_numpy_compatible:
            held[f"{key}:0"] = np.asarray(outer)
    return held, names


def _case_from_graph(
    graph_def: Any,
    fetched: tuple[str, ...],
    values: Mapping[str, Array],
    settings: Mapping[str, Any] = explanation.NO_ARGUMENTS,
    *,
    name: str,
    variables: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    is_compiled: bool = False,
) -> GraphCase:
    """Return a traced graph, run for the nodes that are kept, as a case."""
    config = with_settings(explanation.config_for(graph_def), settings)
    # What it calls is in 16 bits already, also where it stays float32 itself.
    is_compiled = is_compiled or stripping.has_rewritten(graph_def)
    if is_compiled:
        optimized = _inlined_as_traced(graph_def, fetched)
    else:
        optimized = grappler_preview.optimized_here(graph_def, fetched)
    case = _unwatched_case(optimized, fetched, config, values, name)
    if is_compiled:
        under_xla = settings_under_xla(case.settings)
        case = dataclasses.replace(case, settings=under_xla)
    return watched(case, variables, outputs)


def _unwatched_case(
    graph_def: Any,
    fetched: tuple[str, ...],
    config: AmpConfig,
    values: Mapping[str, Array],
    name: str,
) -> GraphCase:
    """Return a graph as Grappler leaves it as a case."""
    device_type = graph_settings.target_device_type(graph_def)
    return GraphCase(
        graph_def,
        explanation.item_of(graph_def, fetched, config),
        with_traced_shapes(graph_def, shapes_from_graph_def(graph_def)),
        graph_settings.settings_from_config(config, device_type),
        values,
        name=name,
    )


def watched(
    case: GraphCase,
    variables: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
) -> GraphCase:
    """Return a case of which outputs and gradients are compared.

    Args:
      case: watches nothing yet.
      variables: human-readable names by name of the handle; None: as traced.
      outputs: human-readable names of the tensors to compare, by `node:output`; None:
        all that the nodes which are fetched make.
    """
    view = Graph(case.graph_def, case.item)
    if variables is None:
        variables = variable_names(view)
    fetches = case.item.fetch
    if outputs is not None:
        fetches = tuple(dict.fromkeys(key.rpartition(":")[0] for key in outputs))
    tensors = (
        *outputs_of(view, fetches, outputs),
        *gradients_of(view, case.settings.lists, case.shapes, variables),
    )
    return dataclasses.replace(case, watched=tensors, variables=variables)


def plain_case(fn: Any, fetches: Iterable[str] = ()) -> GraphCase:
    """Return a graph as a case, its functions inlined and nothing fused.

    It is a GraphDef with the nodes to run, or a ConcreteFunction, whose variables have
    their values.
    """
    graph_def, fetched, name, values = fn, tuple(fetches), "", dict[str, Array]()
    if not isinstance(fn, GraphDef):
        graph_def, fetched, name = explanation.traced_graph(fn)
        values, _ = captured_values(fn)
    config = explanation.config_for(graph_def)
    inlined = _inlined_as_traced(graph_def, fetched)
    return _unwatched_case(inlined, fetched, config, values, name)


def _inlined_as_traced(graph_def: Any, fetched: tuple[str, ...]) -> Any:
    """Return a graph with its functions inlined, those rewritten for XLA as traced."""
    traced = copy.deepcopy(graph_def)
    stripping.restore_traced(traced)
    return grappler_preview.inlined_graph(traced, fetched)


def _outputs_of(function: Any) -> dict[str, str]:
    """Return the names of a function's results by `node:output`."""
    leaves = [name for name, _ in named_leaves(function.structured_outputs)]
    if len(leaves) != len(function.outputs):
        leaves = [f"output_{number}" for number in range(len(function.outputs))]
    names = zip(leaves, function.outputs, strict=True)
    return {tensor.name: leaf for leaf, tensor in names}


def captured_cases(
    run: Callable[[], object], environment: Mapping[str, str | None]
) -> tuple[tuple[GraphCase, ...], dict[str, str]]:
    """Run a script in float32 and return its graphs with what they first got.

    They are in the order they came. Also, by name, those that cannot be run again, with
    the reason.
    """
    captures: list[_Captured] = []
    skipped: dict[str, str] = {}
    without_xla = WithoutXla()

    def records_of(case: GraphCase) -> Records | None:
        if case.settings.fuses:
            skipped[case.name] = "it has operations that XLA alone can run"
            return None
        whole = with_bodies(case.graph_def)
        shapes = with_traced_shapes(whole, case.shapes)
        case = watched(dataclasses.replace(case, graph_def=whole, shapes=shapes))
        try:
            contents = sandbox_of(case, whole, {}).contents
        except NotMeasurableError as error:
            skipped[case.name] = str(error)
            return None
        captured = _Captured(case, without_xla.behind(whole))
        captures.append(captured)
        return Records(tuple(map(captured.tap, contents)))

    run_recorded(run, environment, records_of, without_xla)
    return tuple(each.complete() for each in captures if each.values), skipped


def run_recorded(
    run: Callable[[], object],
    environment: Mapping[str, str | None],
    records_of: Callable[[GraphCase], Records | None],
    without_xla: WithoutXla,
) -> None:
    """Run a script to its end or that of its time; the end itself is no error.

    Of each graph that arrives, without values yet, is recorded what is to be; None: it
    runs as it is.
    """
    recorder = recording.Recorder()

    def observe(case: GraphCase) -> GraphDef | None:
        nodes = case.graph_def.node
        # It reports its tensors already.
        if any(f"/{recording.RECORDER}_" in node.name for node in nodes):
            return None
        records = records_of(case)
        return records and recording.with_records(case.graph_def, records, recorder)

    running_scripts.observe(observe, environment, without_xla)
    run()


@dataclasses.dataclass(eq=False)
class _Captured:
    """A graph that is going to run, and what it has got so far."""

    case: GraphCase
    # Of the function that XLA would have compiled; None for a graph as it is.
    compiled: Uncompiled | None = None
    values: dict[str, Array] = dataclasses.field(default_factory=dict)

    def tap(self, content: Content) -> Tap:
        """Return a tap that records the first value of one of the graph's contents."""

        def keep(value: Array) -> None:
            # The graph may have run before.
            if content.name not in self.values:
                self.values[content.name] = np.array(value)

        # The op that reads a content.
        holder = recording.READ if content.is_state else ""
        holder = recording.DEREFERENCE if content.is_reference else holder
        return Tap(keep, content.name, content.dtype, holder)

    def complete(self) -> GraphCase:
        """Return the case with all that it has got."""
        if self.compiled is None:
            return dataclasses.replace(self.case, values=dict(self.values))
        values = {}
        for name, value in self.values.items():
            argument, colon, output = name.partition(":")
            if argument in self.compiled.arguments:
                placeholder = self.compiled.arguments[argument]
                values[f"{placeholder}{colon}{output}"] = value
        graph = self.compiled.graph
        return _case_from_graph(
            grappler_preview.graph_with_variables(graph),
            grappler_preview.kept_nodes(graph),
            values,
            name=name_of(graph),
            outputs=_outputs_of(graph),
            is_compiled=True,
        )


def named_leaves(result: Any) -> Iterator[tuple[str, Any]]:
    """Yield every tensor of a structure with its path as a name."""
    paths = tf.nest.flatten(_paths(result, ""))
    flat = tf.nest.flatten(result, expand_composites=True)
    if len(paths) != len(flat):
        paths = [f"output_{number}" for number in range(len(flat))]
    for path, value in zip(paths, flat, strict=True):
        if hasattr(value, "dtype"):
            yield path, value


def _paths(result: Any, path: str) -> Any:
    """Return a structure like `result` with names in the place of tensors."""
    inner = f"{path}/" if path else ""
    if isinstance(result, Mapping):
        return {key: _paths(value, f"{inner}{key}") for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [_paths(value, f"{inner}{i}") for i, value in enumerate(result)]
    return path or "output"


UPDATE = "update"
# What TensorFlow puts behind a scope whose name is taken.
_NUMBERED = re.compile(r"_\d+(?=/)")
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
    region: Mapping[int, int]
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
            if not is_update(node.op) and node.index not in self.region:
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
        return node.index not in self.region

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
    `Adam/m/head/kernel`. TensorFlow may have made the variable `head_1/kernel`.
    """
    last = name.rpartition("/")[2]
    exact, numbered = [], []
    for known in set(variables.values()) - {name}:
        if known.replace("/", "_") in last or name.endswith(f"/{known}"):
            exact.append(known)
        elif _NUMBERED.sub("", known).replace("/", "_") in last:
            numbered.append(known)
    return max(exact or numbered, key=len, default=name)


def _is_comparable(dtype: int) -> bool:
    """Tell a tensor of numbers, truth values or text from a handle."""
    return bool(dtype) and tf.dtypes.as_dtype(dtype).is_numpy_compatible
