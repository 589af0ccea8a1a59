"""Let the signatures of a stored model take and give 16-bit tensors.

    Before   x (float32) --> signature_wrapper --> y (float32)
    After    x (bfloat16) --> signature_wrapper --> y (bfloat16), casts within

That is what a client sends and gets, in TensorFlow's loaders of both kinds. The
functions of the model's objects, which Python calls by name, keep their dtypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo

from grappler_pass.functions import conversion
from grappler_pass.graph.op_table import PLAIN_CALL_OPS
from grappler_pass.graph.type_slots import FLOAT32
from grappler_pass.graph.view import split_input
from tf_amp.tools.convert.weights.handles import readers_in
from tf_amp.tools.convert.weights.retyping import cast_up, new_cast

_PLACEHOLDER = "Placeholder"
_SIGNATURES = "signatures"


class _Retyped(NamedTuple):
    """Which arguments and results of a function are in 16 bits now."""

    arguments: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()


def retype_signatures(meta_graph: MetaGraphDef, low_dtype: int) -> tuple[str, ...]:
    """Put the float32 inputs and outputs of all signatures in 16 bits, in place.

    Not done: inputs that are not placeholders, and tensors that are part of sparse or
    ragged ones, stay as they are.

    Returns:
      What has changed, as "signature.name".
    """
    low = _Low(meta_graph.graph_def, low_dtype)
    inputs = [i for s in meta_graph.signature_def.values() for i in s.inputs.values()]
    low.retype_placeholders(split_input(i.name)[0] for i in inputs if _is_float32(i))
    low.retype_calls(_retype_wrappers(meta_graph, low_dtype))
    low.add_casts()
    return tuple(_retype_infos(meta_graph, low))


class _Low:
    """What of the main graph is in 16 bits: tensors, and inputs of calls."""

    def __init__(self, graph_def: GraphDef, low_dtype: int) -> None:
        self._graph_def = graph_def
        self.dtype = low_dtype
        self.tensors: set[str] = set()
        self._taking: list[tuple[NodeDef, int]] = []

    def retype_placeholders(self, names: Iterable[str]) -> None:
        wanted = frozenset(names)
        for node in self._graph_def.node:
            if node.op == _PLACEHOLDER and node.name in wanted:
                node.attr["dtype"].type = self.dtype
                self.tensors.add(node.name)

    def retype_calls(self, wrappers: Mapping[str, _Retyped]) -> None:
        for node in self._graph_def.node:
            if node.op not in PLAIN_CALL_OPS:
                continue
            retyped = wrappers.get(node.attr["f"].func.name, _Retyped())
            for position in retyped.arguments:
                node.attr["Tin"].list.type[position] = self.dtype
                self._taking.append((node, position))
            for output in retyped.results:
                node.attr["Tout"].list.type[output] = self.dtype
                self.tensors.add(f"{node.name}:{output}" if output else node.name)

    def add_casts(self) -> None:
        """Cast for all that takes float32 of 16 bits, or the other way round."""
        readers = readers_in(self._graph_def)
        taking = {(node.name, position) for node, position in self._taking}
        for tensor in sorted(self.tensors):
            found = readers.get(tensor, ())
            others = [(r, at) for r, at in found if (r.name, at) not in taking]
            if others:
                cast = new_cast(self._graph_def, tensor, self.dtype, FLOAT32)
                for reader, position in others:
                    reader.input[position] = cast.name
        for node, position in self._taking:
            node.input[position] = self.low(node.input[position])

    def low(self, tensor: str) -> str:
        """Return a tensor in 16 bits, as it is or cast."""
        tensor = tensor.removesuffix(":0")
        if tensor in self.tensors:
            return tensor
        return str(new_cast(self._graph_def, tensor, FLOAT32, self.dtype).name)


def _retype_infos(meta_graph: MetaGraphDef, low: _Low) -> Iterator[str]:
    """Change what the signatures of the graph itself say; yield what changes."""
    for name, signature in sorted(meta_graph.signature_def.items()):
        for key, info in sorted(signature.inputs.items()):
            if _is_float32(info) and split_input(info.name)[0] in low.tensors:
                info.dtype = low.dtype
                yield f"{name}.{key}"
        for key, info in sorted(signature.outputs.items()):
            if _is_float32(info):
                tensor = low.low(info.name)
                info.name = tensor if ":" in tensor else f"{tensor}:0"
                info.dtype = low.dtype
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
