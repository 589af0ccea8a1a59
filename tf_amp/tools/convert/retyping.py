"""Put weights and signatures of a stored model in 16 bits, with casts beside them.

    Before   handle --> ReadVariableOp(float32) --> MatMul
    After    handle --> ReadVariableOp(bfloat16) --> cast up --> MatMul

    Before   x (float32) --> signature_wrapper --> y (float32)
    After    x (bfloat16) --> signature_wrapper --> y (bfloat16), casts within

That the product may take the 16 bits as they are is left to the pass, which removes the
cast again. Signatures are what a client sends and gets, in TensorFlow's loaders of both
kinds; the functions of the model's objects, which Python calls by name, keep their
dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo
from tensorflow.python.framework import tensor_util

from grappler_pass.annotations import REWRITTEN
from grappler_pass.eligibility.exclusions import finder
from grappler_pass.eligibility.reads import NUMPY_DTYPES
from grappler_pass.functions import conversion
from grappler_pass.graph.op_table import (
    PLAIN_CALL_OPS,
    READ_OPS,
    REF_VARIABLE_OPS,
    VARIABLE_OPS,
)
from grappler_pass.graph.type_slots import DTYPE_ENUMS, FLOAT32
from grappler_pass.graph.view import Item, split_input
from grappler_pass.planning.draft import Settings
from grappler_pass.rewriting.apply import CAST_STEM, cast_constant
from tf_amp.tools.convert.job import Storage
from tf_amp.tools.convert.weights import (
    ASSIGNMENTS,
    LEAST_RANK,
    MAIN,
    Chooser,
    Group,
    Readers,
    Use,
    VariablesFile,
    readers_in,
)

SHAPES = "_output_shapes"
_SAVE = "SaveV2"
# What a save takes before the tensors: file, names, slices.
_BEFORE_TENSORS = 3
_LEAST_ELEMENTS = 256


def store_low(
    meta_graph: MetaGraphDef, item: Item, settings: Settings, file: VariablesFile | None
) -> Storage:
    """Store variables and constants of a graph in 16 bits, in place.

    What callers rely on in it stays; there is no file for a graph without variables.
    """
    low_dtype = DTYPE_ENUMS[settings.low_dtype]
    bodies = _bodies(meta_graph.graph_def)
    excluded_by = finder(settings.exclude)
    chosen: list[Group] = []
    kept: dict[str, str] = {}
    if file is not None:
        has_objects = meta_graph.HasField("object_graph_def")
        objects = meta_graph.object_graph_def if has_objects else None
        dtype = NUMPY_DTYPES[low_dtype]
        chooser = Chooser(bodies, objects, file, item.fetch, excluded_by, dtype)
        chosen, kept = chooser.choose()
    # Functions get such constants as arguments when they are loaded.
    captured = {
        str(node.constant.operation)
        for node in meta_graph.object_graph_def.nodes
        if node.WhichOneof("kind") == "constant"
    } | item.untouchable

    def is_kept(name: str) -> object:
        return name in captured or excluded_by(name)

    constants: list[str] = []
    for name, body in bodies.items():
        places = (place for group in chosen for place in group.places)
        own = [place.tensor for place in places if place.function == name]
        uses = [u for group in chosen for u in group.uses if u.function == name]
        retype_variables(body, own, uses, low_dtype)
        constants += retype_constants(body, low_dtype, is_kept)
    _put_back(bodies, meta_graph.graph_def)
    for number in (number for group in chosen for number in group.objects):
        meta_graph.object_graph_def.nodes[number].variable.dtype = low_dtype
    keys = sorted(key for group in chosen for key in group.keys)
    return Storage(tuple(keys), tuple(constants), kept)


def _bodies(graph_def: GraphDef) -> dict[str, GraphDef]:
    """Return the graph itself and its functions as graphs, as far as they can be."""
    bodies = {MAIN: graph_def}
    library = conversion.library_of(graph_def)
    for name, function in library.items():
        try:
            body, _ = conversion.graph_from_function(function, library)
        except conversion.FunctionError:
            continue
        body.ClearField("library")
        bodies[name] = body
    return bodies


def _put_back(bodies: Mapping[str, GraphDef], graph_def: GraphDef) -> None:
    library = conversion.library_of(graph_def)
    for function in graph_def.library.function:
        body = bodies.get(function.signature.name)
        if body is None:
            continue
        called = {node.op for node in body.node}.intersection(library)
        body.library.function.extend(library[name] for name in called)
        function.CopyFrom(conversion.function_from_graph(body, function))


def retype_variables(
    body: GraphDef, handles: Collection[str], uses: Iterable[Use], low_dtype: int
) -> None:
    """Let a graph read, save and restore some of its variables in 16 bits, in place.

    The body is the graph itself or a function as a graph; handles are tensors in it of
    such variables, with their uses there; `low_dtype` is the DataType they are stored
    as.
    """
    nodes = {node.name: node for node in body.node}
    # Whoever reads a value is asked for before that value gets a cast, so that this
    # does not grow old.
    readers = readers_in(body)
    for name in handles:
        if name in nodes and nodes[name].op in VARIABLE_OPS:
            nodes[name].attr["dtype"].type = low_dtype
    found = [nodes[use.node.name] for use in uses]
    for node in found:
        if node.op in READ_OPS:
            node.attr["dtype"].type = low_dtype
            if not _retype_save(node, readers, low_dtype):
                cast_up(body, node, readers, low_dtype)
    for name in handles:
        if name in nodes and nodes[name].op in REF_VARIABLE_OPS:
            _cast_reference(body, nodes[name], readers, low_dtype)
    # Last, since a new value may be what another variable is read as.
    for node in found:
        if node.op in ASSIGNMENTS:
            _retype_assignment(body, node, nodes, low_dtype)


def retype_constants(
    body: GraphDef, low_dtype: int, is_kept: Callable[[str], object]
) -> tuple[str, ...]:
    """Store large constants of a graph in 16 bits, in place; return their names."""
    stored = []
    readers = readers_in(body)
    for node in [node for node in body.node if _is_large_constant(node)]:
        if is_kept(node.name):
            continue
        value = tensor_util.MakeNdarray(node.attr["value"].tensor)
        with np.errstate(over="ignore"):
            low = value.astype(NUMPY_DTYPES[low_dtype])
        # What overflows stays float32.
        if (np.isfinite(low) != np.isfinite(value)).any():
            continue
        rounded = cast_constant(node, low_dtype)
        del rounded.attr[REWRITTEN]
        node.CopyFrom(rounded)
        cast_up(body, node, readers, low_dtype)
        stored.append(str(node.name))
    return tuple(stored)


def _is_large_constant(node: NodeDef) -> bool:
    if node.op != "Const" or node.attr["dtype"].type != FLOAT32:
        return False
    sizes = [axis.size for axis in node.attr["value"].tensor.tensor_shape.dim]
    return len(sizes) >= LEAST_RANK and math.prod(sizes) >= _LEAST_ELEMENTS


def _retype_assignment(
    body: GraphDef, node: NodeDef, nodes: dict[str, NodeDef], low_dtype: int
) -> None:
    """Restore 16 bits as they are in the file; round any other new value."""
    node.attr["T" if node.op == "Assign" else "dtype"].type = low_dtype
    passed = []
    name, output = split_input(node.input[1])
    # A cast that was just made is not among the nodes.
    while name in nodes and nodes[name].op == "Identity":
        passed.append(nodes[name])
        name, output = split_input(nodes[name].input[0])
    if name not in nodes or nodes[name].op != "RestoreV2":
        node.input[1] = new_cast(body, node.input[1], FLOAT32, low_dtype).name
        return
    nodes[name].attr["dtypes"].list.type[output] = low_dtype
    for identity in passed:
        identity.attr["T"].type = low_dtype


def _retype_save(node: NodeDef, readers: Readers, low_dtype: int) -> bool:
    """Save what `node` reads in 16 bits; False where anything else takes it."""
    passed, saves = [], []
    waiting = [node]
    for source in waiting:
        for reader, position in readers.get(source.name, ()):
            if reader.op == _SAVE:
                saves.append((reader, position - _BEFORE_TENSORS))
            elif reader.op == "Identity":
                passed.append(reader)
                waiting.append(reader)
            else:
                return False
    if not saves:
        return False
    for identity in passed:
        identity.attr["T"].type = low_dtype
    for save, position in saves:
        save.attr["dtypes"].list.type[position] = low_dtype
    return True


def _cast_reference(
    body: GraphDef, variable: NodeDef, readers: Readers, low_dtype: int
) -> None:
    """Save a variable of TensorFlow 1 in 16 bits; give its other readers float32."""
    others = []
    for reader, position in readers.get(variable.name, ()):
        if reader.op == _SAVE:
            types = reader.attr["dtypes"].list.type
            types[position - _BEFORE_TENSORS] = low_dtype
        elif reader.op not in ASSIGNMENTS or position:
            others.append((reader, position))
    if others:
        cast = new_cast(body, variable.name, low_dtype, FLOAT32)
        for reader, position in others:
            reader.input[position] = cast.name


def cast_up(body: GraphDef, node: NodeDef, readers: Readers, low_dtype: int) -> None:
    """Give all readers of a node's value float32 again."""
    found = readers.get(node.name)
    if not found:
        return
    cast = new_cast(body, node.name, low_dtype, FLOAT32)
    if SHAPES in node.attr:
        cast.attr[SHAPES].CopyFrom(node.attr[SHAPES])
    for reader, position in found:
        reader.input[position] = cast.name


def new_cast(body: GraphDef, tensor: str, source: int, target: int) -> NodeDef:
    """Add a cast of a tensor to a graph and return it; nobody reads it yet."""
    wanted = "float32" if target == FLOAT32 else "stored"
    stem = f"{tensor.replace(':', '_')}/{CAST_STEM}{wanted}"
    names = {node.name for node in body.node}
    name, number = stem, 0
    while name in names:
        number += 1
        name = f"{stem}_{number}"
    cast = body.node.add(name=name, op="Cast", input=[tensor])
    cast.attr["SrcT"].type = source
    cast.attr["DstT"].type = target
    cast.attr["Truncate"].b = False
    return cast


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
