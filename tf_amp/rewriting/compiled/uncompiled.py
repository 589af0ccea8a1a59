"""Compiled functions that run without XLA for a while, so that they can be watched.

XLA has no way to pass a tensor to Python. Run as TensorFlow runs any function,
each of them comes to Grappler as a graph of its own, and can tell what it gets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tensorflow.core.framework.attr_value_pb2 import AttrValue

from grappler_pass.annotations import STAMP
from tf_amp._tensorflow_private import functions as private
from tf_amp.tracing import graph_registry
from tf_amp.tracing.grappler_preview import CONTROL_FLOW, LOWER
from tf_amp.tracing.stamps import Stamp

_ONLY_COMPILED = "Xla"


@dataclasses.dataclass(frozen=True)
class Uncompiled:
    """A function that runs without XLA for now.

    Attributes:
      graph: as traced.
      arguments: names of its placeholders by those that the runtime gives them.
    """

    graph: Any
    arguments: Mapping[str, str]


class WithoutXla:
    """Which functions run without XLA, so that an observer receives their graphs."""

    def __init__(self) -> None:
        """Know of none yet."""
        self._known: dict[str, Uncompiled] = {}

    def attributes_for(
        self, graph: Any, attributes: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return what a traced function is made with, so that it runs without XLA.

        Where it needs XLA, that is what it would be made with.
        """
        is_compiled = private.is_compiled(attributes)
        if is_compiled or private.is_traced_for_xla(graph):
            _lower(graph)
        if is_compiled and not _needs_xla(graph):
            return private.without_compiling(attributes)
        return attributes

    def know(self, function: Any, graph: Any, attributes: Mapping[str, Any]) -> None:
        """Remember a function that runs without XLA, or is of the gradient of one."""
        if not private.is_without_compiling(attributes):
            return
        access = private.access_to(function)
        if access is None:
            return
        arguments = (str(a.name) for a in access.definition().signature.input_arg)
        placeholders = (str(tensor.op.name) for tensor in graph.inputs)
        found = Uncompiled(graph, dict(zip(arguments, placeholders, strict=True)))
        self._known[graph_registry.number_of(graph)] = found

    def behind(self, graph_def: Any) -> Uncompiled | None:
        """Return the function whose stamped graph Grappler passes, if it is known."""
        stamps = (n.attr[STAMP].s for n in graph_def.node if STAMP in n.attr)
        numbers = dict.fromkeys(Stamp.from_bytes(stamp).number for stamp in stamps)
        known = (self._known.get(number) for number in numbers)
        return next((each for each in known if each is not None), None)


def _lower(graph: Any) -> None:
    """Have what is in loops and branches inlined, as where a program has no XLA."""
    for op in graph.get_operations():
        if op.type in CONTROL_FLOW:
            op._set_attr(LOWER, AttrValue(b=True))


def _needs_xla(graph: Any) -> bool:
    return any(op.type.startswith(_ONLY_COMPILED) for op in graph.get_operations())
