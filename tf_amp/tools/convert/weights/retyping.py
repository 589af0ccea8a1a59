"""Store variables and constants of a graph in 16 bits, with casts where they are read.

    Before   handle --> ReadVariableOp(float32) --> MatMul
    After    handle --> ReadVariableOp(bfloat16) --> cast up --> MatMul

That the product may take the 16 bits as they are is left to the pass, which removes the
cast again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.python.framework import tensor_util

from grappler_pass.annotations import REWRITTEN
from grappler_pass.eligibility.exclusions import finder
from grappler_pass.eligibility.reads import NUMPY_DTYPES
from grappler_pass.functions import conversion
from grappler_pass.graph.op_table import READ_OPS, REF_VARIABLE_OPS, VARIABLE_OPS
from grappler_pass.graph.type_slots import DTYPE_ENUMS, FLOAT32
from grappler_pass.graph.view import Item, split_input
from grappler_pass.rewriting.apply import CAST_STEM, cast_constant
from tf_amp.tools.convert.files.variables_file import VariablesFile
from tf_amp.tools.convert.planner import MAIN, SHAPES, Planner
from tf_amp.tools.convert.report import Storage
from tf_amp.tools.convert.weights.handles import Group, Readers, Use, readers_in
from tf_amp.tools.convert.weights.low_storage import ASSIGNMENTS, Chooser

_SAVE = "SaveV2"
# What a save takes before the tensors: file, names, slices.
_BEFORE_TENSORS = 3
_LEAST_ELEMENTS = 256
_LEAST_RANK = 2


def store_low(
    meta_graph: MetaGraphDef, item: Item, planner: Planner, file: VariablesFile | None
) -> Storage:
    """Store variables and constants of a graph in 16 bits, in place.

    What callers rely on in it stays; there is no file for a graph without variables.
    """
    low_dtype = DTYPE_ENUMS[planner.settings.low_dtype]
    bodies = _bodies(meta_graph.graph_def)
    excluded_by = finder(planner.settings.exclude)
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
    return len(sizes) >= _LEAST_RANK and math.prod(sizes) >= _LEAST_ELEMENTS


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
