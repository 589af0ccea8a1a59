"""Read and write a frozen graph: one GraphDef whose weights are constants."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from tf_amp.errors import UnreadableModelError

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef


def read(path: pathlib.Path) -> GraphDef:
    """Return the graph of a file.

    Raises:
      UnreadableModelError: the file is damaged, or holds no graph.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework.graph_pb2 import GraphDef

    try:
        graph_def: GraphDef = GraphDef.FromString(path.read_bytes())
    except DecodeError as error:
        raise UnreadableModelError(
            f"{path} is damaged or no frozen graph (a serialized GraphDef): {error}."
        ) from error
    if not graph_def.node or not all(node.op for node in graph_def.node):
        raise UnreadableModelError(f"{path} holds no graph (a serialized GraphDef).")
    return graph_def


def report_folder(path: pathlib.Path) -> pathlib.Path:
    """Return where the report of a converted graph lies: beside it."""
    return path.with_name(f"{path.name}.tf_amp")
