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

import contextlib
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo

from grappler_pass.annotations import REWRITTEN
from grappler_pass.eligibility.exclusions import finder
from grappler_pass.eligibility.reads import NUMPY_DTYPES
from grappler_pass.functions import conversion
from grappler_pass.graph.editing import name_in, new_node, split_input
from grappler_pass.graph.op_table import (
    PLAIN_CALL_OPS,
    READ_OPS,
    REF_VARIABLE_OPS,
    VARIABLE_OPS,
)
from grappler_pass.graph.type_slots import DTYPE_ENUMS, FLOAT32
from grappler_pass.graph.view import Graph, Item, Reader
from grappler_pass.planning.draft import Settings
from grappler_pass.rewriting.apply import CAST_STEM, cast_constant
from tf_amp.tools.convert.job import Storage
from tf_amp.tools.convert.weights import (
    ASSIGNMENTS,
    LEAST_RANK,
    MAIN,
    Chooser,
    VariableGroup,
    VariablesFile,
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
    graph_def, objects = meta_graph.graph_def, meta_graph.object_graph_def
    # The graph itself and its functions as graphs, as far as they can be.
    bodies = {MAIN: Graph(graph_def)}
    library = conversion.library_of(graph_def)
    for name, function in library.items():
        with contextlib.suppress(conversion.FunctionError):
            body, _ = conversion.graph_from_function(function, library)
            body.ClearField("library")
            bodies[name] = Graph(body)
    excluded_by = finder(settings.exclude)
    chosen: list[VariableGroup] = []
    kept: dict[str, str] = {}
    if file is not None:
        dtype = NUMPY_DTYPES[low_dtype]
        chooser = Chooser(bodies, objects, file, item.fetch, excluded_by, dtype)
        chosen, kept = chooser.choose()
    # Functions get such constants as arguments when they are loaded.
    captured = {
        str(node.constant.operation)
        for node in objects.nodes
        if node.WhichOneof("kind") == "constant"
    } | item.untouchable
    constants: list[str] = []
    for name, body in bodies.items():
        places = (place for group in chosen for place in group.places)
        handles = [place.tensor for place in places if place.function == name]
        uses = (use for group in chosen for use in group.uses if use.function == name)
        _retype_variables(body, handles, [use.node.name for use in uses], low_dtype)
        stays = (name for name in body.index if name in captured or excluded_by(name))
        constants += _retype_constants(body, low_dtype, frozenset(stays))
    _write_nodes(bodies.pop(MAIN), graph_def)
    for function in graph_def.library.function:
        if function.signature.name in bodies:
            body = bodies[function.signature.name].to_graph_def()
            called = {node.op for node in body.node}.intersection(library)
            body.library.function.extend(library[name] for name in called)
            function.CopyFrom(conversion.function_from_graph(body, function))
    for number in (number for group in chosen for number in group.objects):
        objects.nodes[number].variable.dtype = low_dtype
    keys = sorted(key for group in chosen for key in group.keys)
    return Storage(tuple(keys), tuple(constants), kept)


def _write_nodes(graph: Graph, into: GraphDef) -> None:
    """Let a GraphDef have the nodes that its graph has become."""
    nodes = graph.to_graph_def().node
    del into.node[:]
    into.node.extend(nodes)


def _retype_variables(
    graph: Graph, handles: Collection[str], uses: Sequence[str], low_dtype: int
) -> None:
    """Let a graph read, save and restore some of its variables in 16 bits.

    Handles are tensors of such variables, uses the nodes that take them; `low_dtype` is
    the DataType that they are stored as.
    """
    for name in handles:
        if name in graph.index and graph.proto(name).op in VARIABLE_OPS:
            graph.edit(name).attr["dtype"].type = low_dtype
    for name in uses:
        if graph.proto(name).op in READ_OPS:
            graph.edit(name).attr["dtype"].type = low_dtype
            if not _retype_save(graph, name, low_dtype):
                _cast_up(graph, name, low_dtype)
    for name in handles:
        if name not in graph.index or graph.proto(name).op not in REF_VARIABLE_OPS:
            continue
        # A variable of TensorFlow 1 is saved as it is; other readers get float32.
        others = []
        for reader in graph.readers(graph.port(name)):
            op = graph.nodes[reader.node].op
            if op == _SAVE:
                _save_low(graph, reader, low_dtype)
            elif op not in ASSIGNMENTS or reader.input:
                others.append(reader)
        _cast_up_for(graph, others, name, low_dtype)
    # Last, since a new value may be what another variable is read as.
    for name in uses:
        if graph.proto(name).op in ASSIGNMENTS:
            _retype_assignment(graph, name, low_dtype)


def _retype_constants(graph: Graph, low_dtype: int, kept: Collection[str]) -> list[str]:
    """Store large constants of a graph in 16 bits, but for some; return their names."""
    stored = []
    for name, node in [(node.name, node.proto) for node in graph.nodes]:
        is_constant = node.op == "Const" and node.attr["dtype"].type == FLOAT32
        if not is_constant or name in kept:
            continue
        tensor = node.attr["value"].tensor
        sizes = [axis.size for axis in tensor.tensor_shape.dim]
        if len(sizes) < LEAST_RANK or math.prod(sizes) < _LEAST_ELEMENTS:
            continue
        value = tf.make_ndarray(tensor)
        with np.errstate(over="ignore"):
            low = value.astype(NUMPY_DTYPES[low_dtype])
        # What overflows stays float32.
        if (np.isfinite(low) != np.isfinite(value)).any():
            continue
        rounded = cast_constant(node, low_dtype)
        del rounded.attr[REWRITTEN]
        graph.put(rounded)
        _cast_up(graph, name, low_dtype)
        stored.append(name)
    return stored


def _retype_assignment(graph: Graph, name: str, low_dtype: int) -> None:
    """Restore 16 bits as they are in the file; round any other new value."""
    node = graph.edit(name)
    node.attr["T" if node.op == "Assign" else "dtype"].type = low_dtype
    passed = []
    source, output = split_input(node.input[1])
    while graph.proto(source).op == "Identity":
        passed.append(source)
        source, output = split_input(graph.proto(source).input[0])
    if graph.proto(source).op != "RestoreV2":
        cast = _add_cast(graph, node.input[1], FLOAT32, low_dtype)
        graph.read(Reader(graph.index[name], 1), cast)
        return
    graph.edit(source).attr["dtypes"].list.type[output] = low_dtype
    for identity in passed:
        graph.edit(identity).attr["T"].type = low_dtype


def _retype_save(graph: Graph, name: str, low_dtype: int) -> bool:
    """Save what a node reads in 16 bits; False where anything else takes it."""
    passed, saves = [], []
    waiting = [name]
    for source in waiting:
        for reader in graph.readers(graph.port(source)):
            node = graph.nodes[reader.node]
            if node.op == _SAVE:
                saves.append(reader)
            elif node.op == "Identity":
                passed.append(node.name)
                waiting.append(node.name)
            else:
                return False
    for identity in passed if saves else ():
        graph.edit(identity).attr["T"].type = low_dtype
    for save in saves:
        _save_low(graph, save, low_dtype)
    return bool(saves)


def _save_low(graph: Graph, save: Reader, low_dtype: int) -> None:
    types = graph.edit(graph.nodes[save.node].name).attr["dtypes"].list.type
    types[save.input - _BEFORE_TENSORS] = low_dtype


def _cast_up(graph: Graph, name: str, low_dtype: int) -> None:
    """Give all readers of a node's value float32 again, of the same shape."""
    cast = _cast_up_for(graph, graph.readers(graph.port(name)), name, low_dtype)
    if cast and SHAPES in graph.proto(name).attr:
        graph.edit(cast).attr[SHAPES].CopyFrom(graph.proto(name).attr[SHAPES])


def _cast_up_for(
    graph: Graph, readers: Sequence[Reader], tensor: str, low_dtype: int
) -> str:
    """Give some readers of a tensor float32 by one cast; return its name, if any."""
    if not readers:
        return ""
    cast = _add_cast(graph, tensor, low_dtype, FLOAT32)
    for reader in readers:
        graph.read(reader, cast)
    return cast


def _add_cast(graph: Graph, tensor: str, source: int, target: int) -> str:
    """Add a cast of a tensor, which nothing reads yet, and return its name."""
    kind = "float32" if target == FLOAT32 else "stored"
    name = graph.unused(f"{tensor.replace(':', '_')}/{CAST_STEM}{kind}")
    cast = new_node("Cast", name, [tensor], SrcT=source, DstT=target, Truncate=False)
    return graph.add(cast)


def retype_signatures(meta_graph: MetaGraphDef, low_dtype: int) -> tuple[str, ...]:
    """Put the float32 inputs and outputs of all signatures in 16 bits, in place.

    Not done: inputs that are not placeholders, and tensors that are part of sparse or
    ragged ones, stay as they are.

    Returns:
      What has changed, as "signature.name".
    """
    graph = Graph(meta_graph.graph_def)
    signatures = sorted(meta_graph.signature_def.items())
    # Tensors in 16 bits, and inputs of calls that take them.
    low: set[str] = set()
    taking: list[Reader] = []
    for info in (info for _, each in signatures for info in each.inputs.values()):
        name = name_in(info.name)
        if _is_float32(info) and graph.proto(name).op == "Placeholder":
            graph.edit(name).attr["dtype"].type = low_dtype
            low.add(name)
    wrappers = _retype_wrappers(meta_graph, low_dtype)
    for name, node in [(node.name, node.proto) for node in graph.nodes]:
        if node.op not in PLAIN_CALL_OPS or node.attr["f"].func.name not in wrappers:
            continue
        arguments, results = wrappers[node.attr["f"].func.name]
        for position in arguments:
            graph.edit(name).attr["Tin"].list.type[position] = low_dtype
            taking.append(Reader(graph.index[name], position))
        for output in results:
            graph.edit(name).attr["Tout"].list.type[output] = low_dtype
            low.add(f"{name}:{output}" if output else name)

    def lowered(tensor: str) -> str:
        """Return a tensor in 16 bits, as it is or cast."""
        tensor = tensor.removesuffix(":0")
        return tensor if tensor in low else _add_cast(graph, tensor, FLOAT32, low_dtype)

    # Casts for all that takes float32 of 16 bits, or the other way round.
    for tensor in sorted(low):
        readers = graph.readers(graph.port(tensor))
        others = [reader for reader in readers if reader not in taking]
        _cast_up_for(graph, others, tensor, low_dtype)
    for taker in taking:
        tensor = graph.text(graph.nodes[taker.node].inputs[taker.input])
        graph.read(taker, lowered(tensor))
    changed = []
    for name, signature in signatures:
        for key, info in sorted(signature.inputs.items()):
            if _is_float32(info) and split_input(info.name)[0] in low:
                info.dtype = low_dtype
                changed.append(f"{name}.{key}")
        for key, info in sorted(signature.outputs.items()):
            if _is_float32(info):
                tensor = lowered(info.name)
                info.name = tensor if ":" in tensor else f"{tensor}:0"
                info.dtype = low_dtype
                changed.append(f"{name}.{key}")
    _write_nodes(graph, meta_graph.graph_def)
    return tuple(changed)


# By number, the arguments and the results of a function that are in 16 bits now.
_Retyped = tuple[frozenset[int], frozenset[int]]


def _retype_wrappers(meta_graph: MetaGraphDef, low_dtype: int) -> dict[str, _Retyped]:
    """Change the functions that the objects of a model call its signatures."""
    objects = meta_graph.object_graph_def
    library = conversion.library_of(meta_graph.graph_def)
    nodes, retyped = objects.nodes, {}
    for root in nodes[0].children if nodes else ():
        if root.local_name != "signatures":
            continue
        for node in (nodes[child.node_id] for child in nodes[root.node_id].children):
            if node.WhichOneof("kind") != "bare_concrete_function":
                continue
            name = str(node.bare_concrete_function.concrete_function_name)
            concrete = objects.concrete_functions[name]
            bound = len(concrete.bound_inputs)
            retyped[name] = _retype_function(library[name], library, bound, low_dtype)
            _retype_structure(concrete.canonicalized_input_signature, low_dtype)
            _retype_structure(concrete.output_signature, low_dtype)
    return retyped


def _retype_function(
    function: FunctionDef, library: conversion.Library, bound: int, low_dtype: int
) -> _Retyped:
    """Let a function take and give 16 bits, in place, with casts in its body.

    Its last arguments, which it has captured, stay; there are `bound` of them.
    """
    body, item = conversion.graph_from_function(function, library)
    graph = Graph(body)
    signature = function.signature
    own = list(signature.input_arg)[: len(signature.input_arg) - bound]
    arguments = frozenset(i for i, arg in enumerate(own) if arg.type == FLOAT32)
    for index in arguments:
        name = own[index].name
        graph.edit(name).attr["dtype"].type = own[index].type = low_dtype
        _cast_up(graph, name, low_dtype)
    outputs = list(signature.output_arg)
    results = frozenset(i for i, arg in enumerate(outputs) if arg.type == FLOAT32)
    for index in results:
        name = item.fetch[index]
        cast = _add_cast(graph, graph.proto(name).input[0], FLOAT32, low_dtype)
        graph.read(Reader(graph.index[name], 0), cast)
        graph.edit(name).attr["T"].type = outputs[index].type = low_dtype
    function.CopyFrom(conversion.function_from_graph(graph.to_graph_def(), function))
    return arguments, results


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
