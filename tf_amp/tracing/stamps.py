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
from collections.abc import Callable
from typing import Any, NamedTuple

from grappler_pass.annotations import FLOAT32, FORWARD, STAMP
from grappler_pass.cached_attributes import cached_attribute
from tf_amp._tensorflow_private import Method, tracing, wrapping
from tf_amp._tensorflow_private.tracing import attribute_of, put_attribute
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.scope_registry import excludes_names
from tf_amp.tracing import graph_names
from tf_amp.tracing import stack as scope_stack
from tf_amp.tracing.bypass import holding
from tf_amp.tracing.terms import terms_of

# In the attributes that a tape keeps of an operation.
_TAPE_KEY = "_tf_amp_operation"


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


_current: contextvars.ContextVar[Forward | None] = contextvars.ContextVar(
    "tf_amp_forward", default=None
)


def mark(op: Any, why_float32: str, goes_by_names: bool) -> None:
    """Put on a new operation what is known of it.

    Args:
      op: the operation.
      why_float32: why it stays float32 for its own sake; "" if it need not.
      goes_by_names: whether what it is a gradient of may exclude it by its name.
    """
    forward = _current.get()
    if forward is not None:
        op._tf_amp_forward = forward
        if goes_by_names:
            op._set_attr(FORWARD, forward.attribute)
    why = why_float32 or (forward.float32 if forward is not None else "")
    if why:
        put_attribute(op, FLOAT32, s=why.encode())


def why_float32(op: Any) -> str:
    """Return why an operation is marked to stay float32; "" where it is not."""
    return (attribute_of(op, FLOAT32) or b"").decode()


def forward_from(op: Any) -> Forward:
    """Return what gradients of an operation belong to."""
    own: Forward | None = getattr(op, "_tf_amp_forward", None)
    return Forward((op.name, *(own.names if own else ())), why_float32(op))


def following(
    adopt: Callable[[Any], None], op_of: Callable[[Any], Any] = lambda op: op
) -> Callable[[Method], Method]:
    """Return what wraps a function that calls gradient functions.

    That is `_MaybeCompile` in a walk over a graph, and what a tape calls for each
    operation it has recorded.

    Args:
      adopt: called with each operation that is differentiated.
      op_of: returns it, given the function's second argument; None: it is not known.
    """

    def differentiate(function: Method, name: Any, given: Any, *args: Any) -> Any:
        op = op_of(given)
        if op is None:
            return function(name, given, *args)
        adopt(op)
        with holding(_current, forward_from(op)):
            return function(name, given, *args)

    return wrapping(differentiate)


@wrapping
def recording(
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
def remembering(
    record_operation: Callable[..., None],
    op_type: Any,
    output_tensors: Any,
    input_tensors: Any,
    backward_function: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Call `record_operation`, which gives a tape a closure that makes gradients."""
    made = _made_op(output_tensors)
    if made is not None:
        own = holding(_current, forward_from(made))
        backward_function = own(backward_function)
    given = (op_type, output_tensors, input_tensors, backward_function)
    record_operation(*given, *args, **kwargs)


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


def recorded_op(attrs: Any) -> Any | None:
    """Return the operation in the attributes that a tape keeps; None of eager ones."""
    if attrs and len(attrs) > 1 and attrs[-2] == _TAPE_KEY:
        return attrs[-1].op
    return None


# In the place of settings: the operation was made where mixed precision is off.
OFF = "off"
_MADE_OFF = "made where mixed precision is off"
_MEMORY = "_tf_amp_stamp"
_COMPLETE = "_tf_amp_complete"

# What tf.data calls the functions it traces: Dataset_map_..., tf_data_experimental_...
_DATASET_FUNCTIONS = ("Dataset_", "tf_data_")


class Force(NamedTuple):
    """The settings in force for new operations of some graph.

    Attributes:
      settings: their id, OFF, or None where there are none.
      graph: the function in whose trace they were put in force; None: before it.
    """

    settings: str | None
    graph: Any | None = None


InForce = Callable[[Any], Force]


@dataclasses.dataclass(frozen=True)
class Stamp:
    """What is written on an operation.

    Attributes:
      settings: their id; None on functions left alone.
      graph: name of the function.
      number: under which `graph_registry` knows it.
      terms: the settings themselves, where another process is to use them.
    """

    settings: str | None
    graph: str = ""
    number: str = ""
    terms: str = ""

    @cached_attribute
    def attribute(self) -> Any:
        """The stamp as an AttrValue."""
        from tensorflow.core.framework.attr_value_pb2 import AttrValue

        text = f"{self.settings}:{self.graph}:{self.number}"
        text += f":{self.terms}" if self.terms else ""
        return AttrValue(s=text.encode())

    @classmethod
    def from_bytes(cls, value: bytes) -> Stamp:
        """Read back what `attribute` holds."""
        settings, _, rest = value.decode(errors="replace").partition(":")
        graph, _, rest = rest.partition(":")
        number, _, terms = rest.partition(":")
        return cls(settings, graph, number, terms)


def stamping(in_force: InForce) -> Callable[..., None]:
    """Return what puts a stamp on each operation that `_create_op_helper` has made.

    Args:
      in_force: returns what holds for new operations of a graph.
    """

    def stamp(result: None, graph: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        settings = _put_stamp(op, stamp_of_graph(graph, in_force(graph)))
        why = scope_stack.keeping_in_float32() or (_MADE_OFF if settings == OFF else "")
        mark(op, why, excludes_names(settings or ""))

    return stamp


def stamp_unstamped(graph: Any, settings: str) -> None:
    """Stamp the operations of a `tf.Graph` that were made before there were settings.

    Functions keep what they are: a Session's graph is decided when the Session is made.
    """
    if graph.building_function or getattr(graph, _COMPLETE, None) == graph.version:
        return
    stamp = _stamp_for(settings, graph_names.SESSION, graph)
    for op in graph.get_operations():
        if attribute_of(op, STAMP) is None:
            _put_stamp(op, stamp)
    setattr(graph, _COMPLETE, graph.version)


def adopt(op: Any, graph: Any, in_force: InForce) -> None:
    """Let an operation and its gradient, made in `graph`, have the same settings.

    An operation of the same graph that was made before there were settings takes those
    of its gradient; a function made for gradients alone takes those of the function
    that it differentiates.
    """
    stamp = stamp_of_graph(graph, in_force(graph))
    if op.graph is graph:
        if stamp.settings not in (None, OFF) and attribute_of(op, STAMP) is None:
            _put_stamp(op, stamp)
    elif stamp.settings is None and graph.building_function:
        known: Stamp | None = getattr(op.graph, _MEMORY, None)
        settings = None if known is None else known.settings
        if settings is not None and not graph.name.startswith(_DATASET_FUNCTIONS):
            setattr(graph, _MEMORY, _stamp_for(settings, graph.name, graph))


def stamp_of_graph(graph: Any, force: Force) -> Stamp:
    """Return the stamp of a new operation of a graph."""
    known: Stamp | None = getattr(graph, _MEMORY, None)
    begins_here = force.graph is not None and force.graph is graph
    if known is not None and not begins_here:
        if graph.building_function or known.settings == force.settings:
            return known
    stamp = _new_stamp(graph, force)
    if stamp.settings is not None and not begins_here:
        setattr(graph, _MEMORY, stamp)
    return stamp


def _new_stamp(graph: Any, force: Force) -> Stamp:
    name = graph.name if graph.building_function else graph_names.SESSION
    if graph.building_function and name.startswith(_DATASET_FUNCTIONS):
        return Stamp(None)
    settings = force.settings
    outer: Any = getattr(graph, "outer_graph", None)
    if force.graph is not graph and outer is not None and outer.building_function:
        around = stamp_of_graph(outer, force)
        settings = around.settings
        # A branch or a loop's body is called after the function that it stands in.
        if getattr(graph, "is_control_flow_graph", False):
            name = around.graph
    if settings is None:
        return Stamp(None)
    return _stamp_for(settings, name, graph)


def _stamp_for(settings: str, name: str, graph: Any) -> Stamp:
    return _stamp(settings, name, graph_names.number_of(graph), terms_of(settings))


@functools.lru_cache(maxsize=1024)
def _stamp(settings: str, graph: str, number: str, terms: str) -> Stamp:
    """Return the one stamp for these, since its attribute takes a while to make."""
    return Stamp(settings, graph, number, terms)


def _put_stamp(op: Any, stamp: Stamp) -> str | None:
    if stamp.settings is not None:
        op._set_attr(STAMP, stamp.attribute)
    return stamp.settings


def traced_op(node: Any) -> Any | None:
    """Return the operation that a node was traced as; None where it is not known."""
    if STAMP not in node.attr:
        return None
    graph = graph_names.graph_of(Stamp.from_bytes(node.attr[STAMP].s).number)
    return None if graph is None else graph_names.inlined_op(graph, node.name)


def in_force(graph: Any) -> Force:
    """Return which settings hold for new operations of a graph; None: no graph."""
    layer = scope_stack.settings_layer(graph)
    if layer is not None:
        return Force(layer.settings, layer.graph)
    scope = scope_registry.scope_in_force()
    return Force(scope.id if scope else None)


def settings_here() -> str | None:
    """Return the id of the settings for new operations of the graph being traced."""
    return in_force(tracing.traced_graph()).settings


def current_config() -> AmpConfig | None:
    """Return the configuration in force here; None where mixed precision is off.

    While a function is traced that is the function's own, unless a scope was entered
    since.
    """
    graph = tracing.traced_graph()
    if graph is None:
        settings_id = in_force(None).settings
    else:
        settings_id = stamp_of_graph(graph, in_force(graph)).settings
    scope = scope_registry.scope_of(settings_id or "")
    return scope.config if scope else None


def stamp_graph(graph: Any) -> None:
    """Put the settings in force on a graph built before there were any."""
    scope = scope_registry.scope_in_force()
    if scope is not None:
        stamp_unstamped(graph, scope.id)
