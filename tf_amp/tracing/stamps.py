"""Trace-time stamps: which settings a function is rewritten with, if any.

Grappler runs at a function's first call, perhaps long after it was traced, so what
holds for a function is written on its operations while they are made: the id of the
settings in force, the function's name, and the number under which `graph_names`
knows it. This module decides what is stamped; `stamp_reader` reads the stamps of a
finished graph.

A function keeps the settings its first operation met, and functions traced within it
take the same, except for what is made in a scope entered during the trace. Functions of
`tf.data` get no stamp, so their graphs stay as they are.

Operations are marked also with what they are a gradient of, and with why they stay
float32. TensorFlow runs an operation's gradient function in one of three places:
walking a graph (`tf.gradients`, bodies of loops, functions differentiated from
outside), on a tape, and as the closure that `tf.custom_gradient` gave the tape. Each is
wrapped here, and what is made meanwhile stays float32 where the operations do that it
is a gradient of. Sums of several gradients belong to no single operation and get no
mark. The names are kept with the operation in Python. They are written into the graph
only where names decide what is excluded: TensorFlow takes no two nodes for equal, and
merges none, whose attributes differ.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

from grappler_pass.annotations import FLOAT32, FORWARD, STAMP
from grappler_pass.fork_safety import cached_attribute
from tf_amp import _tensorflow_private as private
from tf_amp._tensorflow_private import (
    Method,
    acting_after,
    install,
    tracing,
    wrapping,
)
from tf_amp._tensorflow_private.tracing import attribute_of, put_attribute
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.setting_values import is_of_layer, layer_patterns
from tf_amp.config.workers import sent_settings
from tf_amp.tracing import graph_names
from tf_amp.tracing import stack as scope_stack
from tf_amp.tracing.stack import Layer, holding

# In the place of settings: the operation was made where mixed precision is off.
OFF = "off"
_MADE_OFF = "made where mixed precision is off"
# Of graphs: the stamp of their operations, and up to which version all have one.
_STAMP, _COMPLETE = "_tf_amp_stamp", "_tf_amp_complete"
# Of operations: whether they are stamped, what they are a gradient of, and why they
# stay float32. TensorFlow takes long to say that an operation lacks an attribute.
_IS_STAMPED, _FORWARD = "_tf_amp_is_stamped", "_tf_amp_forward"
_WHY_FLOAT32 = "_tf_amp_why_float32"
# What TensorFlow records with closures that make no operation.
_PASSED_ON = frozenset({"captured_value", "ReadVariableOp"})
# In the attributes that a tape keeps of an operation.
_TAPE_KEY = "_tf_amp_operation"
# What tf.data calls the functions it traces: Dataset_map_..., tf_data_experimental_...
_DATASET_FUNCTIONS = ("Dataset_", "tf_data_")


def install_hooks() -> None:
    """Mark operations with what holds where they are made."""
    install(
        {
            private.CREATE_OP: acting_after(_mark_new),
            tracing.REPLICA_THREAD: acting_after(scope_stack.inherit),
            tracing.WALK_GRADIENT: _following(lambda op: op),
            tracing.RECORD_GRADIENT: _recording,
            tracing.RECORD_CLOSURE: _remembering,
            tracing.REPLAY_GRADIENT: _following(_recorded_op),
        }
    )


def install_for_layers(exclude: Iterable[str]) -> None:
    """Keep layers among what is excluded in float32 when they are called."""
    if any(map(is_of_layer, exclude)):
        install(dict.fromkeys(tracing.CALL_LAYER, _call_layer))


@dataclasses.dataclass(frozen=True)
class Stamp:
    """What is written on an operation.

    Attributes:
      settings: their id; None on functions left alone.
      graph: name of the function.
      number: under which `graph_names` knows it.
      sent: the settings themselves, where another process is to use them.
    """

    settings: str | None
    graph: str = ""
    number: str = ""
    sent: str = ""

    @cached_attribute
    def attribute(self) -> Any:
        """The stamp as an AttrValue."""
        from tensorflow.core.framework.attr_value_pb2 import AttrValue

        text = f"{self.settings}:{self.graph}:{self.number}"
        text += f":{self.sent}" if self.sent else ""
        return AttrValue(s=text.encode())

    @classmethod
    def from_bytes(cls, value: bytes) -> Stamp:
        """Read back what `attribute` holds."""
        parts = value.decode(errors="replace").split(":", 3)
        return cls(*parts)


@dataclasses.dataclass(frozen=True)
class Forward:
    """What a gradient belongs to.

    Attributes:
      names: of the operation, and of those that it is itself a gradient of.
      float32: why the operation was to stay float32; "" where it was not.
    """

    names: tuple[str, ...]
    float32: str

    @cached_attribute
    def attribute(self) -> Any:
        """The names as an AttrValue."""
        from tensorflow.core.framework.attr_value_pb2 import AttrValue

        names = [name.encode() for name in self.names]
        return AttrValue(list=AttrValue.ListValue(s=names))


# What is made now is a gradient of.
_forward: contextvars.ContextVar[Forward | None] = contextvars.ContextVar(
    "tf_amp_forward", default=None
)


def settings_here() -> str | None:
    """Return the id of the settings for new operations of the graph being traced."""
    return _in_force(tracing.traced_graph()).settings


def current_config() -> AmpConfig | None:
    """Return the configuration in force here; None where mixed precision is off.

    While a function is traced that is the function's own, unless a scope was entered
    since.
    """
    graph = tracing.traced_graph()
    settings = settings_here() if graph is None else stamp_of_graph(graph).settings
    scope = scope_registry.scope_of(settings or "")
    return scope.config if scope else None


def stamp_of_graph(graph: Any, in_force: Layer | None = None) -> Stamp:
    """Return the stamp of a new operation of a graph.

    Args:
      graph: a function's, or a `tf.Graph`.
      in_force: the layer whose settings hold; by default the one that is in force here.
    """
    in_force = in_force or _in_force(graph)
    known: Stamp | None = getattr(graph, _STAMP, None)
    begins_here = in_force.graph is not None and in_force.graph is graph
    if known is not None and not begins_here:
        if graph.building_function or known.settings == in_force.settings:
            return known
    name = graph.name if graph.building_function else graph_names.SESSION
    if graph.building_function and name.startswith(_DATASET_FUNCTIONS):
        return Stamp(None)
    settings = in_force.settings
    outer: Any = getattr(graph, "outer_graph", None)
    if in_force.graph is not graph and outer is not None and outer.building_function:
        around = stamp_of_graph(outer, in_force)
        settings = around.settings
        # A branch or a loop's body is called after the function that it stands in.
        if getattr(graph, "is_control_flow_graph", False):
            name = around.graph
    if settings is None:
        return Stamp(None)
    stamp = _stamp_for(settings, name, graph)
    if not begins_here:
        setattr(graph, _STAMP, stamp)
    return stamp


def stamp_as_traced(graph: Any) -> Stamp:
    """Return the stamp of a graph's operations, whatever is in force now."""
    return stamp_of_graph(graph, _layer_of_process(None))


def stamp_graph(graph: Any) -> None:
    """Stamp the operations of a `tf.Graph` that were made before there were settings.

    Functions keep what they are: a Session's graph is decided when the Session is made.
    """
    scope = scope_registry.scope_in_force()
    is_complete = getattr(graph, _COMPLETE, None) == graph.version
    if scope is None or graph.building_function or is_complete:
        return
    stamp = _stamp_for(scope.id, graph_names.SESSION, graph)
    for op in graph.get_operations():
        if attribute_of(op, STAMP) is None:
            _put_stamp(op, stamp)
    setattr(graph, _COMPLETE, graph.version)


def traced_op(node: Any) -> Any | None:
    """Return the operation that a node was traced as; None where it is not known."""
    if STAMP not in node.attr:
        return None
    graph = graph_names.graph_of(Stamp.from_bytes(node.attr[STAMP].s).number)
    return None if graph is None else graph_names.inlined_op(graph, node.name)


def why_float32(op: Any) -> str:
    """Return why an operation is marked to stay float32; "" where it is not."""
    return getattr(op, _WHY_FLOAT32, "")


def forward_from(op: Any) -> Forward:
    """Return what gradients of an operation belong to."""
    own: Forward | None = getattr(op, _FORWARD, None)
    return Forward((op.name, *(own.names if own else ())), why_float32(op))


def _in_force(graph: Any) -> Layer:
    """Return the layer whose settings hold for new operations of a graph; None: none.

    Without a scope those of the process hold, as if entered before any trace.
    """
    scope = scope_registry.scope_in_force()
    process = _layer_of_process(scope.id if scope else None)
    return scope_stack.settings_layer(graph) or process


@functools.lru_cache(maxsize=64)
def _layer_of_process(settings: str | None) -> Layer:
    """Return the one layer for these, since each operation asks for it."""
    return Layer(None, settings)


def _mark_new(result: None, graph: Any, op: Any, *args: Any, **kwargs: Any) -> None:
    """Put on a new operation the stamp, and what it is a gradient of."""
    settings = _put_stamp(op, stamp_of_graph(graph))
    why_float32 = scope_stack.keeping_in_float32()
    if not why_float32 and settings == OFF:
        why_float32 = _MADE_OFF
    forward = _forward.get()
    if forward is not None:
        setattr(op, _FORWARD, forward)
        if scope_registry.excludes_names(settings or ""):
            op._set_attr(FORWARD, forward.attribute)
    why = why_float32 or (forward.float32 if forward is not None else "")
    if why:
        setattr(op, _WHY_FLOAT32, why)
        put_attribute(op, FLOAT32, s=why.encode())


def _put_stamp(op: Any, stamp: Stamp) -> str | None:
    if stamp.settings is not None:
        op._set_attr(STAMP, stamp.attribute)
        setattr(op, _IS_STAMPED, True)
    return stamp.settings


def _stamp_for(settings: str, name: str, graph: Any) -> Stamp:
    return _stamp(settings, name, graph_names.number_of(graph), sent_settings(settings))


@functools.lru_cache(maxsize=1024)
def _stamp(settings: str, graph: str, number: str, sent: str) -> Stamp:
    """Return the one stamp for these, since its attribute takes a while to make."""
    return Stamp(settings, graph, number, sent)


def _adopt(op: Any) -> None:
    """Let an operation have the settings of its gradient, which is made now.

    An operation of the same graph that was made before there were settings takes those
    of its gradient; a function made for gradients alone takes those of the function
    that it differentiates.
    """
    graph = tracing.traced_graph() or op.graph
    stamp = stamp_of_graph(graph)
    if op.graph is graph:
        is_missing = not getattr(op, _IS_STAMPED, False)
        if is_missing and stamp.settings not in (None, OFF):
            _put_stamp(op, stamp)
    elif stamp.settings is None and graph.building_function:
        forward: Stamp | None = getattr(op.graph, _STAMP, None)
        settings = None if forward is None else forward.settings
        if settings is not None and not graph.name.startswith(_DATASET_FUNCTIONS):
            setattr(graph, _STAMP, _stamp_for(settings, graph.name, graph))


def _following(op_of: Callable[[Any], Any]) -> Callable[[Method], Method]:
    """Return what wraps a function that calls gradient functions.

    That is `_MaybeCompile` in a walk over a graph, and what a tape calls for each
    operation it has recorded.

    Args:
      op_of: returns the operation that is differentiated, given the function's second
        argument; None: it is not known.
    """

    def differentiate(function: Method, name: Any, given: Any, *args: Any) -> Any:
        op = op_of(given)
        if op is None:
            return function(name, given, *args)
        _adopt(op)
        with holding(_forward, forward_from(op)):
            return function(name, given, *args)

    return wrapping(differentiate)


@wrapping
def _recording(
    record_gradient: Callable[..., None],
    name: Any,
    inputs: Any,
    attrs: Any,
    outputs: Any,
) -> None:
    """Call `record_gradient` so that a tape knows the operation, not its type only."""
    made = _made_op(outputs)
    if made is not None:
        attrs = (*attrs, _TAPE_KEY, _Recorded(made))
    record_gradient(name, inputs, attrs, outputs)


@wrapping
def _remembering(
    record_operation: Callable[..., None],
    op_type: Any,
    output_tensors: Any,
    input_tensors: Any,
    backward_function: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Call `record_operation`, which gives a tape a closure that makes gradients."""
    made = None if op_type in _PASSED_ON else _made_op(output_tensors)
    if made is not None:
        backward_function = holding(_forward, forward_from(made))(backward_function)
    record_operation(
        op_type, output_tensors, input_tensors, backward_function, *args, **kwargs
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Recorded:
    """An operation among a tape's attributes, which serve as the key of a cache."""

    op: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Recorded)

    def __hash__(self) -> int:
        return hash(_Recorded)


def _made_op(outputs: Any) -> Any | None:
    """Return the operation of a graph that made some tensors; None of eager ones."""
    first = outputs[0] if isinstance(outputs, list | tuple) and outputs else outputs
    try:
        return first.op
    except AttributeError:
        return None


def _recorded_op(attrs: Any) -> Any | None:
    """Return the operation in the attributes that a tape keeps; None of eager ones."""
    if attrs and len(attrs) > 1 and attrs[-2] == _TAPE_KEY:
        return attrs[-1].op
    return None


@wrapping
def _call_layer(call: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer, and mark what it makes if it is excluded."""
    pattern = layer_patterns.get(layer)
    config = current_config() if pattern else None
    if config is None or pattern not in config.exclude:
        return call(layer, *args, **kwargs)
    with scope_stack.keeping_float32(f"layer {layer.name}"):
        return call(layer, *args, **kwargs)
