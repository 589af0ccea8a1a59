"""Recognize a graph again: the same digest in every run of the same script.

Nodes are known by what they compute from what, not by their names, which count up from
trace to trace and from process to process; so are functions, by their bodies.
Verdicts, the time spent on a graph, and the plans of a checkpoint are kept by it.
Within one process, `digest_of_products` knows a graph by its products.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Iterable, Mapping

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue, NameAttrList
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.functions.conversion import (
    FunctionError,
    Library,
    graph_from_function,
    library_of,
)
from grappler_pass.graph.op_table import ALLOW, OP_TABLE
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import Graph, GraphError, Item, Node
from grappler_pass.planning.draft import Trial
from tf_amp.run.graph_copy import NodeRole, roles_for
from tf_amp.tracing.grappler_preview import with_bodies

# Names of things, which say nothing about the time that they take.
_NAMES = frozenset(
    """container frame_name index message seed seed2 shared_name tensor_array_name
    tensor_name token value var_name""".split()
)
# Of what TensorFlow notes beside a node: only this gives the size of a variable whose
# handle the caller brings in.
_NOTED = frozenset({"_handle_shapes"})
_COUNTER = re.compile(rb"_\d+")
# What the low precision of a plan starts from: the ops on the allow list.
_PRODUCT_OPS = frozenset(
    row.op for row in OP_TABLE if ALLOW in (row.bfloat16, row.float16)
)
# Larger constants are weights; smaller ones are axes, sizes and permutations.
_MOST_VALUES = 64
_DIGEST_BYTES = 16


def fingerprint_of(trial: Trial) -> str:
    """Return a digest of two graphs of one function and of the shapes they run with.

    What differs between two runs of one script is left out: names, stamps, values of
    weights. What makes another plan of the same graph, other prices, is not.
    """
    graphs = (trial.before, trial.after)
    return fingerprint_of_graphs(graphs, trial.item, trial.shapes)


def fingerprint_of_graphs(
    graphs: Iterable[GraphDef], item: Item, shapes: Shapes
) -> str:
    """Return a digest of what one function is and becomes; as `fingerprint_of`."""
    return _digest(
        _FunctionDigests(library_of(graph_def)).digest_of_graph(graph_def, item, shapes)
        for graph_def in map(with_bodies, graphs)
    ).hex()


def digest_of_products(graph_def: GraphDef, shapes: Shapes) -> str:
    """Return a digest of the names, ops and shapes of what asks for 16 bits.

    Grappler comes twice with each graph, the second time with one that differs a
    little, and has another fingerprint. Two graphs that have nothing in common may bear
    one name (`step`, `<lambda>`, Keras' own) and fetch nodes of one name. The products
    and convolutions stay the same between the visits, and differ from graph to graph
    of a process.
    """
    products = []
    for node in graph_def.node:
        if node.op in _PRODUCT_OPS:
            sources = (text.partition(":") for text in node.input if text[0] != "^")
            operands = [
                dict(enumerate(shapes.get(source, ()))).get(int(port or 0))
                for source, _, port in sources
            ]
            at = (*operands, *shapes.get(node.name, ()))
            products.append((node.name, node.op, *map(repr, at)))
    return _digest([repr(sorted(products)).encode()]).hex()


def digests_of_nodes(
    graph_def: GraphDef, view: Graph, shapes: Shapes
) -> dict[int, bytes]:
    """Return by its number what each node computes from what, as a digest."""
    functions = _FunctionDigests(library_of(graph_def))
    return functions.digests_of_nodes(graph_def, view, shapes)


class _FunctionDigests:
    """Digests of graphs that call the functions of one library."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._digests: dict[str, bytes] = {}

    def digest_of_graph(self, graph_def: GraphDef, item: Item, shapes: Shapes) -> bytes:
        view = Graph(graph_def, item)
        return _digest(sorted(self.digests_of_nodes(graph_def, view, shapes).values()))

    def digests_of_nodes(
        self, graph_def: GraphDef, view: Graph, shapes: Shapes
    ) -> dict[int, bytes]:
        role_of = roles_for(graph_def)
        digests: dict[int, bytes] = {}
        for i in view.order:
            node = view.nodes[i]
            op = node.op
            kind = self._digest_of(op) if op in self._library else op.encode()
            parts = [kind, node.device.rpartition("/")[2].encode(), *self._attrs(node)]
            if role_of(node.proto) is not NodeRole.COMPUTE:
                parts.append(repr(shapes.get(node.name)).encode())
            # A loop's back edge leads to a node that has no digest yet.
            for port in node.inputs:
                parts += [b"%d" % port.output, digests.get(port.node, b"loop")]
            parts += sorted(digests.get(source, b"loop") for source in node.controls)
            parts.append(b"%d" % (node.name in view.item.untouchable))
            digests[i] = _digest(parts)
        return digests

    def _attrs(self, node: Node) -> Iterable[bytes]:
        attrs: Mapping[str, AttrValue] = node.proto.attr
        for name in sorted(attrs):
            if name in _NOTED or not (name in _NAMES or name.startswith("_")):
                value = attrs[name]
                called = [value.func] if value.HasField("func") else value.list.func
                yield name.encode()
                yield (
                    _digest(map(self._called, called))
                    if called
                    else value.SerializeToString(deterministic=True)
                )
        if node.op != "Const":
            return
        # Of a constant its type and shape and, of a few integers, the values.
        tensor = attrs["value"].tensor
        sizes = [dim.size for dim in tensor.tensor_shape.dim]
        values = [tensor.dtype, *sizes]
        # Folded texts cannot be read back.
        dtype = tf.as_dtype(tensor.dtype)
        is_whole = dtype.is_integer or dtype.is_bool
        if is_whole and math.prod(sizes) <= _MOST_VALUES:
            values += tf.make_ndarray(tensor).reshape(-1).tolist()
        yield repr(values).encode()

    def _called(self, function: NameAttrList) -> bytes:
        attrs = NameAttrList(attr=function.attr).SerializeToString(deterministic=True)
        return _digest([self._digest_of(function.name), attrs])

    def _digest_of(self, name: str) -> bytes:
        """Return the digest of a function: of its body, if that is known."""
        if name not in self._digests:
            # A name ends with a number that counts traces. A recursive call ends here.
            self._digests[name] = _COUNTER.sub(b"", name.encode())
            function = self._library.get(name)
            if function and len(function.ret) >= len(function.signature.output_arg):
                with contextlib.suppress(FunctionError, GraphError):
                    graph_def, item = graph_from_function(function, self._library)
                    self._digests[name] = self.digest_of_graph(graph_def, item, {})
        return self._digests[name]


def _digest(parts: Iterable[bytes]) -> bytes:
    made = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        made.update(b"%d:" % len(part))
        made.update(part)
    return made.digest()
