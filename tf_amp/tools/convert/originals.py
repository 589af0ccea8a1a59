"""Keep the structure of a model as it was, so that float32 can be had back.

Large constants are left out: their nodes are still in the converted graph, under the
same names, in float32 or in 16 bits.
"""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow.python.framework import tensor_util

from tf_amp.errors import UnreadableModelError

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

FILE = "original.pb.gz"
_LEFT_OUT = "_left_out"
_LARGE_BYTES = 1024

_Proto = TypeVar("_Proto", bound=Any)


def keep(original: Any, graphs: list[GraphDef], path: pathlib.Path) -> None:
    """Write a model's protobuf without the values of its large constants.

    Args:
      original: the protobuf; changed in place.
      graphs: the GraphDefs within it.
      path: of the file to write.
    """
    for graph_def in graphs:
        for node in _constants(graph_def).values():
            if node.attr["value"].tensor.ByteSize() > _LARGE_BYTES:
                node.attr["value"].Clear()
                node.attr[_LEFT_OUT].b = True
    path.write_bytes(gzip.compress(original.SerializeToString(), mtime=0))


def restored(path: pathlib.Path, proto: _Proto) -> _Proto:
    """Fill a protobuf with what `keep` wrote, large constants still left out.

    Raises:
      UnreadableModelError: the file is damaged.
    """
    try:
        proto.ParseFromString(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, DecodeError) as error:
        raise UnreadableModelError(f"{path} is damaged: {error}.") from error
    return proto


def fill_constants(original: GraphDef, converted: GraphDef) -> None:
    """Put the values left out, in float32, back into `original`, in place.

    Raises:
      UnreadableModelError: the converted graph does not hold one any more.
    """
    found = _constants(converted)
    for key, node in _constants(original).items():
        if _LEFT_OUT not in node.attr:
            continue
        if key not in found:
            raise UnreadableModelError(
                f"constant {key[1]!r} is gone from the converted model; it was "
                "changed since it was written."
            )
        del node.attr[_LEFT_OUT]
        node.attr["value"].CopyFrom(found[key].attr["value"])
        _restore_type(node)


def _restore_type(node: NodeDef) -> None:
    """Make the value of a constant one of the type that its node says."""
    proto = node.attr["value"].tensor
    wanted = node.attr["dtype"].type
    if proto.dtype == wanted:
        return
    value = tensor_util.MakeNdarray(proto).astype(np.float32)
    proto.CopyFrom(tensor_util.make_tensor_proto(value, dtype=wanted))


def _constants(graph_def: GraphDef) -> Mapping[tuple[str, str], NodeDef]:
    return {
        (function, str(node.name)): node
        for function, node in _nodes(graph_def)
        if node.op == "Const"
    }


def _nodes(graph_def: GraphDef) -> Iterator[tuple[str, NodeDef]]:
    for node in graph_def.node:
        yield "", node
    for function in graph_def.library.function:
        for node in function.node_def:
            yield str(function.signature.name), node
