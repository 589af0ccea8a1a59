"""What of a stored graph those rely on who load it, by names of nodes."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.variable_pb2 import VariableDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, TensorInfo

from grappler_pass.graph.op_table import CONSTANT_OPS, INPUT_OPS
from grappler_pass.graph.view import Item, split_input
from grappler_pass.rewriting.named_graphs import name_in

_NO_RESULTS = CONSTANT_OPS | INPUT_OPS | {"NoOp"}


def item_of(meta_graph: MetaGraphDef) -> Item:
    """Return what a SavedModel's graph is run for, and what else names its nodes."""
    fetch: list[str] = []
    feed: list[str] = []
    for signature in meta_graph.signature_def.values():
        fetch += [n for info in signature.outputs.values() for n in _names(info)]
        feed += [n for info in signature.inputs.values() for n in _names(info)]
    present = {node.name for node in meta_graph.graph_def.node}
    named = [name for name in _named(meta_graph) if name in present]
    return Item(_unique(fetch), _unique(feed), _unique(named))


def frozen_item(graph_def: GraphDef) -> Item:
    """Return what a bare graph is run for: whatever nobody reads."""
    read = {split_input(text)[0] for node in graph_def.node for text in node.input}
    fetch = (
        node.name
        for node in graph_def.node
        if node.name not in read and node.op not in _NO_RESULTS
    )
    feed = (node.name for node in graph_def.node if node.op in INPUT_OPS)
    return Item(_unique(fetch), _unique(feed))


def _names(info: TensorInfo) -> Iterator[str]:
    """Yield the nodes whose tensors a signature names."""
    kind = info.WhichOneof("encoding")
    if kind == "coo_sparse":
        sparse = info.coo_sparse
        yield from map(
            name_in,
            (
                sparse.values_tensor_name,
                sparse.indices_tensor_name,
                sparse.dense_shape_tensor_name,
            ),
        )
    elif kind == "composite_tensor":
        for component in info.composite_tensor.components:
            yield from _names(component)
    elif kind == "name":
        yield name_in(info.name)


def _named(meta_graph: MetaGraphDef) -> Iterator[str]:
    """Yield the nodes that savers, assets and collections name."""
    saver = meta_graph.saver_def
    yield from map(
        name_in,
        (saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name),
    )
    for asset in meta_graph.asset_file_def:
        yield from _names(asset.tensor_info)
    for collection in meta_graph.collection_def.values():
        yield from map(name_in, collection.node_list.value)
        for value in collection.bytes_list.value:
            yield from _variable_names(value)


def _variable_names(value: bytes) -> Iterator[str]:
    """Yield what a stored description of a variable names, if it is one."""
    try:
        variable = VariableDef.FromString(value)
    except DecodeError:
        return
    yield from map(
        name_in,
        (variable.variable_name, variable.initializer_name, variable.snapshot_name),
    )


def _unique(names: Iterator[str] | list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))
