"""Tell a graph that Grappler brings back from others that are called alike.

Grappler comes twice with each graph, the second time with one that differs a little.
Two graphs that have nothing in common may bear one name (`step`, `<lambda>`, Keras'
own) and fetch nodes of one name. What asks for 16 bits, the products and convolutions,
stays as it is between the two visits, and differs from graph to graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.op_table import ALLOW, OP_TABLE
from grappler_pass.graph.shapes import Shape, Shapes

# What the low precision of a plan starts from: the ops on the allow list.
_SEED_OPS = frozenset(
    row.op for row in OP_TABLE if ALLOW in (row.bfloat16, row.float16)
)
_DIGEST_BYTES = 16


def digest_of_seeds(graph_def: GraphDef, shapes: Shapes) -> str:
    """Return a digest of the names, ops and shapes of what asks for 16 bits.

    Args:
      graph_def: as Grappler hands it over.
      shapes: static shapes by name of node.
    """
    seeds = sorted(
        (node.name, node.op, *map(repr, _shapes_at(node, shapes)))
        for node in graph_def.node
        if node.op in _SEED_OPS
    )
    made = hashlib.blake2b(repr(seeds).encode(), digest_size=_DIGEST_BYTES)
    return made.hexdigest()


def _shapes_at(node: NodeDef, shapes: Shapes) -> Iterator[Shape | None]:
    """Yield the shapes of a node's operands, then of its results."""
    for text in node.input:
        if not text.startswith("^"):
            source, _, port = text.partition(":")
            outputs, number = shapes.get(source, ()), int(port or 0)
            yield outputs[number] if number < len(outputs) else None
    yield from shapes.get(node.name, ())
