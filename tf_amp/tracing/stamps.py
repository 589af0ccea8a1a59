"""Trace-time stamps: which settings a function is rewritten with, if any.

Grappler runs at a function's first call, perhaps long after it was traced, so what
holds for a function is written on its operations while they are made: the id of the
settings in force, the function's name, and the number under which `graph_registry`
knows it. This module decides what is stamped; `stamp_reader` reads the stamps of a
finished graph. Neither knows anything of the settings themselves.

A function keeps the settings its first operation met, and functions traced within it
take the same, except for what is made in a scope entered during the trace. Functions of
`tf.data` get no stamp, so their graphs stay as they are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from grappler_pass.annotations import STAMP
from grappler_pass.cached_attributes import cached_attribute
from tf_amp._tensorflow_private.tracing import attribute_of
from tf_amp.config.scope_registry import excludes_names
from tf_amp.tracing import forward_ops, graph_names, graph_registry
from tf_amp.tracing import stack as scope_stack
from tf_amp.tracing.terms import terms_of

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
        forward_ops.mark(op, why, excludes_names(settings or ""))

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
    return _stamp(settings, name, graph_registry.number_of(graph), terms_of(settings))


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
    graph = graph_registry.graph_of(Stamp.from_bytes(node.attr[STAMP].s).number)
    return None if graph is None else graph_registry.inlined_op(graph, node.name)
