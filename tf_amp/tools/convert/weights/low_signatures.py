"""Let the signatures of a stored model take and give 16-bit tensors.

    Before   x (float32) --> signature_wrapper --> y (float32)
    After    x (bfloat16) --> signature_wrapper --> y (bfloat16), casts within

That is what a client sends and gets, in TensorFlow's loaders of both kinds. The
functions of the model's objects, which Python calls by name, keep their dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo

from grappler_pass.functions import conversion
from grappler_pass.graph.op_table import PLAIN_CALL_OPS
from grappler_pass.graph.type_slots import FLOAT32
from grappler_pass.graph.view import split_input
from tf_amp.tools.convert.weights.handles import Readers, readers_in
from tf_amp.tools.convert.weights.retyping import cast_up, new_cast

_PLACEHOLDER = "Placeholder"
_SIGNATURES = "signatures"


class _Retyped(NamedTuple):
    """Which arguments and results of a function are in 16 bits now."""

    arguments: frozenset[int]
    results: frozenset[int]


def retype_signatures(meta_graph: MetaGraphDef, low_dtype: int) -> tuple[str, ...]:
    """Put the float32 inputs and outputs of all signatures in 16 bits, in place.

    Not done: inputs that are not placeholders, and tensors that are part of sparse or
    ragged ones, stay as they are.

    Returns:
      What has changed, as "signature.name".
    """
    graph_def = meta_graph.graph_def
    wrappers = _retype_wrappers(meta_graph, low_dtype)
    graph = _Graph(graph_def, low_dtype)
    inputs = [i for s in meta_graph.signature_def.values() for i in s.inputs.values()]
    for info in filter(_is_float32, inputs):
        graph.retype_placeholder(split_input(info.name)[0])
    for node in [node for node in graph_def.node if node.op in PLAIN_CALL_OPS]:
        if node.attr["f"].func.name in wrappers:
            graph.retype_call(node, wrappers[node.attr["f"].func.name])
    changed = tuple(_retype_infos(meta_graph, graph))
    graph.drop_unread(meta_graph)
    return changed


class _Graph:
    """The main graph, with the casts that were put into it."""

    def __init__(self, graph_def: GraphDef, low_dtype: int) -> None:
        self._graph_def = graph_def
        self.low_dtype = low_dtype
        self._nodes = {str(node.name): node for node in graph_def.node}
        self._readers: Readers = readers_in(graph_def)
        # What is in 16 bits, by name of the cast to float32.
        self._low_behind: dict[str, str] = {}
        self.placeholders: set[str] = set()

    def retype_placeholder(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None or node.op != _PLACEHOLDER or name in self.placeholders:
            return
        node.attr["dtype"].type = self.low_dtype
        self.placeholders.add(name)
        self._cast_up(name)

    def retype_call(self, node: NodeDef, retyped: _Retyped) -> None:
        for position in retyped.arguments:
            node.attr["Tin"].list.type[position] = self.low_dtype
            node.input[position] = self.low(node.input[position])
        for output in retyped.results:
            node.attr["Tout"].list.type[output] = self.low_dtype
            self._cast_up(f"{node.name}:{output}" if output else str(node.name))

    def low(self, tensor: str) -> str:
        """Return a tensor in 16 bits, as it is or cast."""
        tensor = tensor.removesuffix(":0")
        if tensor in self._low_behind.values():
            return tensor
        if tensor in self._low_behind:
            return self._low_behind[tensor]
        cast = new_cast(self._graph_def, tensor, FLOAT32, self.low_dtype)
        return str(cast.name)

    def drop_unread(self, meta_graph: MetaGraphDef) -> None:
        """Take out the casts to float32 that nobody reads."""
        read = {split_input(t)[0] for n in self._graph_def.node for t in n.input}
        for signature in meta_graph.signature_def.values():
            read |= {split_input(i.name)[0] for i in signature.outputs.values()}
        unread = self._low_behind.keys() - read
        kept = [node for node in self._graph_def.node if node.name not in unread]
        del self._graph_def.node[:]
        self._graph_def.node.extend(kept)

    def _cast_up(self, tensor: str) -> None:
        cast = new_cast(self._graph_def, tensor, self.low_dtype, FLOAT32)
        self._low_behind[str(cast.name)] = tensor
        for reader, position in self._readers.get(tensor, ()):
            reader.input[position] = cast.name


def _retype_infos(meta_graph: MetaGraphDef, graph: _Graph) -> Iterator[str]:
    """Change what the signatures of the graph itself say; yield what changes."""
    for name, signature in sorted(meta_graph.signature_def.items()):
        for key, info in sorted(signature.inputs.items()):
            if _is_float32(info) and split_input(info.name)[0] in graph.placeholders:
                info.dtype = graph.low_dtype
                yield f"{name}.{key}"
        for key, info in sorted(signature.outputs.items()):
            if _is_float32(info):
                low = graph.low(info.name)
                info.name = low if ":" in low else f"{low}:0"
                info.dtype = graph.low_dtype
                yield f"{name}.{key}"


def _retype_wrappers(
    meta_graph: MetaGraphDef, low_dtype: int
) -> Mapping[str, _Retyped]:
    """Change the functions that the objects of a model call its signatures."""
    objects = meta_graph.object_graph_def
    library = conversion.library_of(meta_graph.graph_def)
    found: dict[str, _Retyped] = {}
    for name in _wrapper_names(objects):
        concrete = objects.concrete_functions[name]
        bound = len(concrete.bound_inputs)
        found[name] = _retype_function(library[name], library, bound, low_dtype)
        _retype_structure(concrete.canonicalized_input_signature, low_dtype)
        _retype_structure(concrete.output_signature, low_dtype)
    return found


def _wrapper_names(objects: Any) -> Iterator[str]:
    if not objects.nodes:
        return
    roots = (c for c in objects.nodes[0].children if c.local_name == _SIGNATURES)
    for root in roots:
        for child in objects.nodes[root.node_id].children:
            node = objects.nodes[child.node_id]
            if node.WhichOneof("kind") == "bare_concrete_function":
                yield str(node.bare_concrete_function.concrete_function_name)


def _retype_function(
    function: FunctionDef, library: conversion.Library, bound: int, low_dtype: int
) -> _Retyped:
    """Let a function take and give 16 bits, in place, with casts in its body.

    Its last arguments, which it has captured, stay; there are `bound` of them.
    """
    body, item = conversion.graph_from_function(function, library)
    nodes, readers = {node.name: node for node in body.node}, readers_in(body)
    signature = function.signature
    own = list(signature.input_arg)[: len(signature.input_arg) - bound]
    arguments = frozenset(i for i, arg in enumerate(own) if arg.type == FLOAT32)
    for index in arguments:
        node = nodes[own[index].name]
        node.attr["dtype"].type = own[index].type = low_dtype
        cast_up(body, node, readers, low_dtype)
    outputs = list(signature.output_arg)
    results = frozenset(i for i, arg in enumerate(outputs) if arg.type == FLOAT32)
    for index in results:
        node = nodes[item.fetch[index]]
        node.input[0] = new_cast(body, node.input[0], FLOAT32, low_dtype).name
        node.attr["T"].type = outputs[index].type = low_dtype
    function.CopyFrom(conversion.function_from_graph(body, function))
    return _Retyped(arguments, results)


def _retype_structure(value: Any, low_dtype: int) -> None:
    """Change the types in a description of nested tensors, in place."""
    kind = value.WhichOneof("kind")
    if kind == "tensor_spec_value" and value.tensor_spec_value.dtype == FLOAT32:
        value.tensor_spec_value.dtype = low_dtype
    elif kind in ("tuple_value", "list_value"):
        for each in getattr(value, kind).values:
            _retype_structure(each, low_dtype)
    elif kind == "dict_value":
        for each in value.dict_value.fields.values():
            _retype_structure(each, low_dtype)


def _is_float32(info: TensorInfo) -> bool:
    return bool(info.WhichOneof("encoding") == "name" and info.dtype == FLOAT32)
