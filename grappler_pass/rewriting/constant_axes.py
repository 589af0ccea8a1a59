"""Axes that TensorFlow has mapped from one layout to another are constants again.

Its choice of layouts puts such ops in front of what reads axes or sizes, and does not
move what reads them a second time.

Before   const [1, 2] --> DataFormatDimMap(NHWC, NCHW) --> mean
After    const [2, 3] --> mean
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import tensor_util

from grappler_pass.annotations import mark
from grappler_pass.rewriting.named_graphs import name_in, texts_of

_MAPS, _PERMUTES = "DataFormatDimMap", "DataFormatVecPermute"


def with_constant_axes(graph_def: GraphDef, kept: Collection[str]) -> GraphDef:
    """Return a copy whose mapped constants are constants, but for the kept nodes."""
    constants = {node.name: node for node in graph_def.node if node.op == "Const"}
    copy = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        made = None
        if node.op in (_MAPS, _PERMUTES) and node.name not in kept:
            made = _constant(node, constants.get(name_in(node.input[0])))
        copy.node.add().CopyFrom(made or node)
    return copy


def _constant(node: NodeDef, source: NodeDef | None) -> NodeDef | None:
    """Return a constant in the place of a node that maps one; None of any other."""
    if source is None:
        return None
    given = tensor_util.MakeNdarray(source.attr["value"].tensor)
    mapped = _mapped(node, given)
    if mapped is None:
        return None
    made = NodeDef(name=node.name, op="Const", device=node.device)
    controls = (*texts_of(node)[1:], *texts_of(source))
    made.input.extend(dict.fromkeys(controls))
    made.attr["dtype"].type = source.attr["dtype"].type
    tensor = tensor_util.make_tensor_proto(mapped, shape=given.shape)
    made.attr["value"].tensor.CopyFrom(tensor)
    mark(made, node)
    return made


def _mapped(node: NodeDef, value: np.ndarray) -> np.ndarray | None:
    """Return what a node makes of a constant; None of what has other sizes."""
    # Reading an absent key would create it; both are the defaults.
    attrs = {name: node.attr[name].s.decode() for name in node.attr if "format" in name}
    source = attrs.get("src_format", "NHWC")
    target = attrs.get("dst_format", "NCHW")
    if node.op == _MAPS:
        axes = [target.index(source[axis]) for axis in value.reshape(-1)]
        return np.array(axes, value.dtype)
    if len(np.atleast_1d(value)) != len(source):
        return None
    return value[[source.index(axis) for axis in target]]
