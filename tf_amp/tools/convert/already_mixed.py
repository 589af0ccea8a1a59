"""What of a stored model computes in 16 bits already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW
from grappler_pass.graph.type_slots import DTYPE_ENUMS, DTYPE_NAMES
from tf_amp.config.amp_config import LOW_DTYPES

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_LOW = frozenset(DTYPE_ENUMS[name] for name in LOW_DTYPES)


def products_in_16_bits(graph_def: GraphDef) -> dict[str, int]:
    """Count products and convolutions in 16 bits, as "MatMul in bfloat16"."""
    lists = [OpLists.for_dtype(name) for name in LOW_DTYPES]
    found: Counter[str] = Counter()
    for node in _nodes(graph_def):
        dtype = _low_dtype(node)
        if dtype and any(each.list_of(node.op) == ALLOW for each in lists):
            found[f"{node.op} in {dtype}"] += 1
    return dict(found)


def unknown_ops(graph_def: GraphDef) -> dict[str, int]:
    """Count the nodes whose op this TensorFlow does not know, by op."""
    from grappler_pass.graph.type_slots import op_def_of

    functions = {f.signature.name for f in graph_def.library.function}
    return dict(
        Counter(
            str(node.op)
            for node in _nodes(graph_def)
            if node.op not in functions and op_def_of(node.op) is None
        )
    )


def _nodes(graph_def: GraphDef) -> Iterator[NodeDef]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _low_dtype(node: NodeDef) -> str:
    types = (v.type for v in node.attr.values() if v.WhichOneof("value") == "type")
    return next((DTYPE_NAMES[dtype] for dtype in types if dtype in _LOW), "")
