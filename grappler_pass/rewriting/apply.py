"""Apply a coloring to a copy of a graph: retype slots, split, convert at crossings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from copy import deepcopy

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_pb2 import TensorProto

from grappler_pass.annotations import REWRITTEN, mark
from grappler_pass.eligibility.fused_ops import (
    cast_node,
    in_batches,
    lost_shape,
    split_fused,
)
from grappler_pass.eligibility.reads import NUMPY_DTYPES
from grappler_pass.fusions import FLAT_ACTIVATIONS
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.type_slots import DTYPE_NAMES, TypeSlot
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.planning.draft import CastPlan, Conversion, Draft

# Every cast this pass made is called by it, behind the name of what it converts.
CAST_STEM = "tf_amp_cast_"


def apply(draft: Draft) -> Draft:
    """Return a draft with its graph, low slots retyped and crossings converted.

    Before   a --> matmul --> exp
    After    a --> cast_down --> matmul(low) --> cast_up --> exp

    Each new node follows the node whose tensor it converts.

    Not done: control edges, names and devices of given nodes stay; functions in the
    library are not looked into.
    """
    if not any(draft.low):
        return dataclasses.replace(draft, rewritten=draft.graph_def)
    view, slots, low_dtype = draft.view, draft.slots, draft.low_dtype
    graph = view.copy()
    _convert(graph, view, draft.casts)
    for i in draft.casts.absorbed:
        # An existing Cast reads the low tensor; between equal types it passes on.
        cast = graph.edit(view.nodes[i].name)
        cast.attr[REWRITTEN].b = True
        if cast.attr["DstT"].type != low_dtype:
            cast.attr["SrcT"].type = low_dtype
            continue
        for name in ("SrcT", "DstT", "Truncate"):
            cast.attr.pop(name, None)
        cast.op = "Identity"
        cast.attr["T"].type = low_dtype
    for i in sorted(draft.low_nodes):
        node = view.nodes[i]
        low_slots = [slots.slots[s] for s in slots.slots_of[i] if draft.low[s]]
        retype(graph.edit(node.name), low_slots, low_dtype)
        # What is first fused behind the two factors, if anything.
        bias = [known_shape(draft.shapes, view, port) for port in node.inputs[2:3]]
        result = known_shape(draft.shapes, view, Port(i, 0))
        *parts, last = split_fused(
            graph.nodes[i].proto,
            low_dtype,
            graph.unused,
            device_type=node.device_type,
            has_flat_bias=any(shape and len(shape) == 1 for shape in bias),
            product_alone=slots.has_float32_results(i),
            shape=lost_shape(node.proto, node.device_type, result),
        )
        if not parts and (sizes := _sizes_in_batches(draft, node)):
            *parts, last = in_batches(last, *sizes, graph.unused)
        if parts:
            graph.put(last, *parts)
    return dataclasses.replace(draft, rewritten=graph.to_graph_def())


def _sizes_in_batches(draft: Draft, node: Node) -> tuple[int, int] | None:
    """Return what a fused product sums over, and its columns, if it runs as a batch.

    None where its own kernel is the faster one, or these sizes are open.
    """
    settings = draft.settings
    may_fuse = FLAT_ACTIVATIONS in settings.fusions and not settings.fuses
    is_on_cpu = node.device_type == "CPU" and settings.onednn
    if node.op != "_FusedMatMul" or not may_fuse or not is_on_cpu:
        return None
    call, model = draft.prices.calls[node.index], settings.models["CPU"]
    if call is None or not model.runs_in_batches(call, settings.low_dtype):
        return None
    shapes = (known_shape(draft.shapes, draft.view, port) for port in node.inputs[:2])
    depth, columns = (shape[-1] if shape else None for shape in shapes)
    return (depth, columns) if depth and columns else None


def is_rewritten(graph_def: GraphDef) -> bool:
    """Return whether this pass has already changed the graph."""
    return any(REWRITTEN in node.attr for node in graph_def.node)


def without_marks(graph_def: GraphDef) -> tuple[GraphDef, set[str]]:
    """Return a graph in which nothing counts as changed, and the names of what was.

    Another part of it may then be rewritten under other settings.
    """
    copy = deepcopy(graph_def)
    marked = [node for node in copy.node if REWRITTEN in node.attr]
    for node in marked:
        del node.attr[REWRITTEN]
    return copy, {node.name for node in marked}


def with_marks(graph_def: GraphDef, names: set[str]) -> GraphDef:
    """Return the graph, in place, with nodes marked as changed."""
    for node in graph_def.node:
        if node.name in names:
            node.attr[REWRITTEN].b = True
    return graph_def


def retype(copy: NodeDef, low_slots: Iterable[TypeSlot], low_dtype: int) -> None:
    """Set types of a node, in place, to a 16-bit one, and mark it as changed."""
    for slot in low_slots:
        value = copy.attr[slot.attr]
        if value.WhichOneof("value") == "list":
            value.list.type[slot.index] = low_dtype
        else:
            value.type = low_dtype
    copy.attr[REWRITTEN].b = True


def _convert(graph: Graph, view: Graph, casts: CastPlan) -> None:
    """Put in the conversions of a plan, and let their readers read them."""
    readers = [(c, reader) for c in casts.conversions for reader in c.readers]
    for conversion in casts.conversions:
        made = _made_for(view, conversion, graph)
        for node in made:
            graph.add(node, behind=view.nodes[conversion.port.node].name)
        text = made[-1].name if made else view.text(conversion.source)
        for reader in conversion.readers:
            graph.read(reader, text)
    redirected = {reader for _, reader in readers}
    for conversion, reader in readers:
        node = view.nodes[reader.node]
        port = node.inputs[reader.input]
        if port == conversion.port and not conversion.hoist:
            continue
        # It waits as its own read of a variable did. If others still use that read, it
        # waits for the read itself: a write that waits for this reader alone must not
        # come before theirs.
        waiting = view.nodes[port.node].controls if conversion.hoist else ()
        if any(other not in redirected for other in view.readers(port)):
            waiting = (port.node,)
        awaited = [i for i in waiting if i not in node.controls]
        graph.wait(node.name, [f"^{view.nodes[i].name}" for i in awaited])


def _made_for(view: Graph, conversion: Conversion, graph: Graph) -> list[NodeDef]:
    """Return the nodes that make a converted tensor; the last one's output is it.

    A variable is read and cast outside its loops, and the low value enters these:

    Before   handle --> enter --> read --> cast (every iteration)
    After    handle --> read --> cast --> enter (once)
    """
    if conversion.is_identity:
        return []
    given, target = view.nodes[conversion.port.node].proto, conversion.target_dtype
    suffix = f"_{conversion.port.output}" if conversion.port.output else ""
    stem = f"{given.name}{suffix}/{CAST_STEM}{DTYPE_NAMES[target]}"
    if conversion.folds:
        constant = cast_constant(given, target)
        constant.name = graph.unused(stem)
        return [constant]
    made: list[NodeDef] = []
    source = view.text(conversion.source)
    if conversion.hoist:
        read = deepcopy(given)
        read.name = source = graph.unused(f"{stem}/read")
        read.input[:] = [view.text(view.nodes[conversion.hoist[-1]].inputs[0])]
        mark(read, given)
        made.append(read)
    types = conversion.source_dtype, target
    cast = cast_node(graph.unused(stem), source, types, given)
    cast.device = conversion.device
    cast.input.extend(f"^{view.nodes[i].name}" for i in conversion.waits_for)
    made.append(cast)
    for number in reversed(conversion.hoist):
        enter = deepcopy(view.nodes[number].proto)
        enter.name = graph.unused(f"{stem}/enter")
        enter.device = conversion.device
        enter.input[:] = [made[-1].name]
        enter.attr["T"].type = target
        mark(enter, given)
        made.append(enter)
    return made


def cast_constant(given: NodeDef, target: int) -> NodeDef:
    """Return a constant of the rounded value with the same control inputs."""
    value = tf.make_ndarray(given.attr["value"].tensor)
    with np.errstate(over="ignore"):
        rounded = value.astype(NUMPY_DTYPES[target])
    proto = TensorProto(dtype=target)
    for size in value.shape:
        proto.tensor_shape.dim.add(size=size)
    bits = rounded.reshape(-1).view(np.uint16)
    # A repeated value is encoded once, as TensorFlow itself does.
    if bits.size and (bits == bits[0]).all():
        proto.half_val.append(int(bits[0]))
    else:
        proto.tensor_content = bits.tobytes()
    constant = deepcopy(given)
    constant.attr["dtype"].type = target
    constant.attr["value"].tensor.CopyFrom(proto)
    mark(constant, given)
    return constant
