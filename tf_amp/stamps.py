"""Trace-time stamps: which settings a function is rewritten with, if any.

Grappler runs at a function's first call, perhaps long after it was traced, so what
holds for a function is written on its operations while they are made: the id of the
settings in force, and the function's name. This module decides what is stamped, and
what the stamps of a finished graph say; it knows nothing of the settings themselves.

A function keeps the settings its first operation met, and functions traced within it
take the same. Functions of `tf.data` get no stamp, so their graphs stay as they are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

ATTRIBUTE = "_tf_amp"
_MEMORY = "_tf_amp_stamp"
_COMPLETE = "_tf_amp_complete"

# What tf.data calls the functions it traces: Dataset_map_..., tf_data_experimental_...
_DATASET_FUNCTIONS = ("Dataset_", "tf_data_")

# Operations that seed low precision are stamped whenever their function was traced
# under settings, since Grappler makes no new ones but the fused kinds.
_SEED_OPS = ("MatMul", "BatchMatMul", "Conv", "Einsum", "DepthwiseConv")


@dataclasses.dataclass(frozen=True)
class Stamp:
    """What is written on an operation; `settings` is None on functions left alone."""

    settings: str | None
    graph: str = ""

    @functools.cached_property
    def attribute(self) -> Any:
        """The stamp as an AttrValue."""
        from tensorflow.core.framework.attr_value_pb2 import AttrValue

        return AttrValue(s=f"{self.settings}:{self.graph}".encode())

    @classmethod
    def from_bytes(cls, value: bytes) -> Stamp:
        """Read back what `attribute` holds."""
        settings, _, graph = value.decode(errors="replace").partition(":")
        return cls(settings, graph)


@dataclasses.dataclass(frozen=True)
class Marks:
    """What the stamps of one graph say.

    Attributes:
      settings: id of the settings most operations were traced under; None without any.
      graph: name of the function most of those operations come from.
      strangers: nodes from functions traced under other settings, or under none; they
        keep their dtype.
    """

    settings: str | None
    graph: str
    strangers: tuple[str, ...] = ()


def stamping(
    create_op: Callable[..., None], current: Callable[[], str | None]
) -> Callable[..., None]:
    """Return TensorFlow's funnel of new operations with a stamp put on each.

    Args:
      create_op: `Graph._create_op_helper`, which made and imported operations pass.
      current: returns the id of the settings in force, None for none.
    """

    @functools.wraps(create_op)
    def create_stamped_op(graph: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        create_op(graph, op, *args, **kwargs)
        stamp = _stamp_of_graph(graph, current())
        if stamp.settings is not None:
            op._set_attr(ATTRIBUTE, stamp.attribute)

    return create_stamped_op


def stamp_unstamped(graph: Any, settings: str) -> None:
    """Stamp the operations of a `tf.Graph` that were made before there were settings.

    Functions keep what they are: a Session's graph is decided when the Session is made.
    """
    if graph.building_function or getattr(graph, _COMPLETE, None) == graph.version:
        return
    stamp = Stamp(settings, "graph")
    for op in graph.get_operations():
        try:
            op.get_attr(ATTRIBUTE)
        except ValueError:
            op._set_attr(ATTRIBUTE, stamp.attribute)
    setattr(graph, _COMPLETE, graph.version)


def marks_from_graph_def(graph_def: Any) -> Marks:
    """Read the stamps of a graph that Grappler hands over.

    Fused and folded nodes have lost their stamp: they take that of their name scope,
    since inlining puts every function's nodes into a scope of its own.
    """
    stamps = {
        node.name: Stamp.from_bytes(node.attr[ATTRIBUTE].s)
        for node in graph_def.node
        if ATTRIBUTE in node.attr
    }
    settings = _most_common(stamp.settings for stamp in stamps.values())
    if settings is None:
        return Marks(None, "")
    graph = _most_common(s.graph for s in stamps.values() if s.settings == settings)
    owners: dict[str, str | None] = {
        name: stamp.settings for name, stamp in stamps.items()
    }
    for node in graph_def.node:
        if node.name not in owners and node.op.startswith(_SEED_OPS):
            owners[node.name] = None
    if set(owners.values()) == {settings}:
        return Marks(settings, graph or "")
    return Marks(settings, graph or "", _strangers(graph_def, owners, settings))


def _strangers(
    graph_def: Any, owners: dict[str, str | None], settings: str
) -> tuple[str, ...]:
    """Name the nodes that belong to other settings than those of the graph."""
    scopes: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for name, owner in owners.items():
        for scope in _scopes(name):
            scopes[scope][owner] += 1

    def owner_of(name: str) -> str | None:
        if name in owners:
            return owners[name]
        for scope in _scopes(name):
            if scope in scopes:
                return scopes[scope].most_common(1)[0][0]
        return settings

    return tuple(n.name for n in graph_def.node if owner_of(n.name) != settings)


def _stamp_of_graph(graph: Any, settings: str | None) -> Stamp:
    """Return a graph's stamp; a function's is decided by its first operation."""
    known: Stamp | None = getattr(graph, _MEMORY, None)
    if known is not None and (graph.building_function or known.settings == settings):
        return known
    stamp = _new_stamp(graph, settings)
    if settings is not None:
        setattr(graph, _MEMORY, stamp)
    return stamp


def _new_stamp(graph: Any, settings: str | None) -> Stamp:
    if not graph.building_function:
        return Stamp(settings, "graph")
    if graph.name.startswith(_DATASET_FUNCTIONS):
        return Stamp(None)
    outer: Any = getattr(graph, "outer_graph", None)
    if outer is not None and outer.building_function:
        settings = _stamp_of_graph(outer, settings).settings
    return Stamp(settings, graph.name)


def _scopes(name: str) -> Iterator[str]:
    """Yield the name scopes around a node, innermost first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _most_common(values: Iterator[str | None]) -> str | None:
    ranked = Counter(value for value in values if value is not None).most_common(1)
    return ranked[0][0] if ranked else None
