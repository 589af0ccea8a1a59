"""The two ways to name a tensor: in a function's body, and in a graph.

A body names node, output argument and number in it (`split:output:1`), a graph node and
number among all outputs of the node (`split:1`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.op_def_pb2 import OpDef

from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.errors import AmpError
from grappler_pass.graph.type_slots import attr_of, op_def_of
from grappler_pass.graph.view import split_input

Library = Mapping[str, FunctionDef]


# On a node whose op TensorFlow does not know: the names of its outputs, as they are
# numbered in the graph.
OUTPUTS = "_tf_amp_outputs"


class FunctionError(AmpError, ValueError):
    """A function cannot be taken for a graph; the message names it and why."""


@dataclasses.dataclass(frozen=True)
class _Span:
    """Where the tensors of one output argument lie among all of a node's."""

    name: str
    begin: int
    count: int


def _spans(node: NodeDef, op_def: OpDef) -> Iterator[_Span]:
    begin = 0
    for arg in op_def.output_arg:
        count = _tensor_count(node, arg, op_def)
        yield _Span(str(arg.name), begin, count)
        begin += count


def _tensor_count(node: NodeDef, arg: OpDef.ArgDef, op_def: OpDef) -> int:
    name = arg.number_attr or arg.type_list_attr
    if not name:
        return 1
    value = attr_of(node, name, op_def)
    return int(value.i) if arg.number_attr else len(value.list.type)


def _op_def(node: NodeDef, library: Library) -> OpDef | None:
    called = library.get(node.op)
    return op_def_of(node.op) if called is None else called.signature


class NamesInGraph:
    """The tensors of a function's body by the names they have in it."""

    def __init__(self, function: FunctionDef, library: Library) -> None:
        """Read names of `function`, whose nodes may call what is in `library`."""
        self._function = str(function.signature.name)
        self._library = library
        self._arguments = {str(arg.name) for arg in function.signature.input_arg}
        self._nodes = {str(node.name): node for node in function.node_def}
        self._begins: dict[str, dict[str, int]] = {}
        inputs = (str(text) for node in function.node_def for text in node.input)
        self._texts = (*inputs, *map(str, function.ret.values()))

    def of(self, text: str) -> str:
        """Return how a graph names what the body calls `text`."""
        if text.startswith("^"):
            return text
        name, _, rest = text.partition(":")
        if name in self._arguments:
            return name
        output, _, number = rest.partition(":")
        unknown = self.unknown_outputs(name)
        if unknown:
            position = unknown.index(rest)
        else:
            begin = self._begins_of(name, text).get(output)
            if begin is None:
                raise self._error(text)
            position = begin + int(number or 0)
        return f"{name}:{position}" if position else name

    def unknown_outputs(self, name: str) -> tuple[str, ...]:
        """Return what is read of a node whose op TensorFlow does not know, in order.

        Nothing tells how many outputs there are: they count as they are met.
        """
        node = self._nodes.get(name)
        if node is None or _op_def(node, self._library) is not None:
            return ()
        return self._read_outputs.get(name, ())

    @cached_attribute
    def _read_outputs(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, dict[str, None]] = {}
        for text in self._texts:
            name, _, rest = text.partition(":")
            if rest:
                found.setdefault(name, {})[rest] = None
        return {name: tuple(rests) for name, rests in found.items()}

    def _begins_of(self, name: str, text: str) -> dict[str, int]:
        begins = self._begins.get(name)
        if begins is None:
            node = self._nodes.get(name)
            op_def = None if node is None else _op_def(node, self._library)
            if node is None or op_def is None:
                raise self._error(text)
            begins = {span.name: span.begin for span in _spans(node, op_def)}
            self._begins[name] = begins
        return begins

    def _error(self, text: str) -> FunctionError:
        return FunctionError(
            f"function {self._function!r} reads {text!r}: there is no such argument or "
            "node, or TensorFlow does not know its op"
        )


class NamesInBody:
    """The tensors of a graph by the names they have in a function's body."""

    def __init__(
        self, nodes: Mapping[str, NodeDef], arguments: set[str], library: Library
    ) -> None:
        """Give names to the tensors of `nodes`; arguments have no outputs of a node."""
        self._nodes = nodes
        self._arguments = arguments
        self._library = library
        self._known: dict[str, tuple[_Span, ...]] = {}

    def of(self, text: str) -> str:
        """Return how the body names what the graph calls `text`."""
        name, position = split_input(text)
        if position < 0 or name in self._arguments:
            return text
        node = self._nodes.get(name)
        if node is not None and OUTPUTS in node.attr:
            return f"{name}:{node.attr[OUTPUTS].list.s[position].decode()}"
        for span in self._spans_of(name):
            if span.begin <= position < span.begin + span.count:
                return f"{name}:{span.name}:{position - span.begin}"
        raise FunctionError(f"the graph reads {text!r}, which no node writes")

    def _spans_of(self, name: str) -> tuple[_Span, ...]:
        spans = self._known.get(name)
        if spans is None:
            node = self._nodes.get(name)
            op_def = None if node is None else _op_def(node, self._library)
            if node is not None and op_def is not None:
                spans = tuple(_spans(node, op_def))
            spans = spans or ()
            self._known[name] = spans
        return spans
