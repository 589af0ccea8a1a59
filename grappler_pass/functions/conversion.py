"""A function of a library as a graph that the pass takes, and back.

    FunctionDef --> GraphDef + Item --> ... --> GraphDef --> FunctionDef

Arguments become placeholders, results identities that are fetched: whatever happens in
between, the signature stays. Functions that the body calls, the bodies of its loops and
branches among them, come along in the graph's library, as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.op_def_pb2 import OpDef

from grappler_pass.functions.tensors import (
    OUTPUTS,
    FunctionError,
    Library,
    NamesInBody,
    NamesInGraph,
)
from grappler_pass.graph.shapes import Shape, proto_from_shape
from grappler_pass.graph.view import Item

__all__ = [
    "FunctionError",
    "Known",
    "Library",
    "bodies_of",
    "called_by",
    "function_from_graph",
    "graph_from_function",
    "library_of",
    "reachable_from",
]

# What the runtime writes on the node of an argument, in `_Arg` and `Placeholder` alike.
_SHAPES = "_output_shapes"
_HANDLES = frozenset({types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})


class Known(NamedTuple):
    """What is known of an argument beside its type.

    Attributes:
      shape: of the tensor; None: what the function tells, if anything.
      contents: of a handle, dtype (DataType enum) and shape of what it refers to.
    """

    shape: Shape | None = None
    contents: tuple[tuple[int, Shape | None], ...] = ()


def library_of(graph_def: GraphDef) -> dict[str, FunctionDef]:
    """Return the functions of a graph by name."""
    return {str(f.signature.name): f for f in graph_def.library.function}


def bodies_of(graph_def: GraphDef) -> dict[str, Sequence[NodeDef]]:
    """Return the nodes of a graph, under the empty name, and those of its functions."""
    functions = library_of(graph_def).items()
    return {"": graph_def.node, **{name: f.node_def for name, f in functions}}


def called_by(node: NodeDef, library: Library) -> tuple[str, ...]:
    """Name the functions of a library that a node calls, as an op or by attributes."""
    names = [str(node.op)]
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            names.append(str(value.func.name))
        elif kind == "list":
            names.extend(str(each.name) for each in value.list.func)
    return tuple(dict.fromkeys(name for name in names if name in library))


def reachable_from(nodes: Iterable[NodeDef], library: Library) -> tuple[str, ...]:
    """Name all functions that nodes call, and what these call, callers first."""
    found: dict[str, None] = {}
    waiting = [name for node in nodes for name in called_by(node, library)]
    for name in waiting:
        if name not in found:
            found[name] = None
            for node in library[name].node_def:
                waiting.extend(called_by(node, library))
    return tuple(found)


def graph_from_function(
    function: FunctionDef, library: Library, known: Sequence[Known] = ()
) -> tuple[GraphDef, Item]:
    """Return a function's body as a graph, and what its callers rely on.

    Before   f(x) -> y:  y = product:product:0    product = MatMul(x, x)
    After    x = Placeholder, product = MatMul(x, x), y = Identity(product), fetched

    Args:
      function: not modified.
      library: the functions that it may call, by name.
      known: of its arguments, in order; bears on prices alone.

    Returns:
      A graph with arguments first, then the body in its order, then the results, and an
      item that holds the results, and what must run, in place.

    Raises:
      FunctionError: its arguments depend on attributes of the call, or it reads what
        is not there.
    """
    signature = function.signature
    names = NamesInGraph(function, library)
    graph_def = GraphDef()
    for index, arg in enumerate(signature.input_arg):
        _check_type(signature, arg)
        facts = known[index] if index < len(known) else Known()
        graph_def.node.append(_argument(function, index, facts))
    for node in function.node_def:
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        copy.input[:] = [names.of(text) for text in node.input]
        unknown = names.unknown_outputs(str(node.name))
        if unknown:
            copy.attr[OUTPUTS].list.s.extend(text.encode() for text in unknown)
    results = _result_names(function)
    for arg, name in zip(signature.output_arg, results, strict=True):
        _check_type(signature, arg)
        graph_def.node.append(_result(name, arg, names.of(function.ret[arg.name])))
    for name in reachable_from(function.node_def, library):
        graph_def.library.function.add().CopyFrom(library[name])
    kept = tuple(dict.fromkeys(function.control_ret.values()))
    arguments = tuple(str(arg.name) for arg in signature.input_arg)
    return graph_def, Item(fetch=results, feed=arguments, preserve=kept)


def function_from_graph(graph_def: GraphDef, original: FunctionDef) -> FunctionDef:
    """Return a function whose body is a graph made from `original`'s, rewritten.

    Signature, attributes and all that is known of the arguments are the original's.
    What comes from `graph_from_function` unchanged gives the same function.

    Args:
      graph_def: not modified; its library tells what functions it calls as ops.
      original: the function that the graph was made from; not modified.

    Raises:
      FunctionError: an argument or a result of the original is not in the graph.
    """
    function = FunctionDef()
    function.CopyFrom(original)
    function.ClearField("node_def")
    arguments = {str(arg.name) for arg in original.signature.input_arg}
    results = _result_names(original)
    nodes = {str(node.name): node for node in graph_def.node}
    lost = [name for name in (*arguments, *results) if name not in nodes]
    if lost:
        raise FunctionError(
            f"function {original.signature.name!r}: the graph has no node "
            f"{', '.join(sorted(lost))}, which was an argument or a result"
        )
    names = NamesInBody(nodes, arguments, library_of(graph_def))
    for arg, name in zip(original.signature.output_arg, results, strict=True):
        function.ret[arg.name] = names.of(nodes[name].input[0])
    for node in graph_def.node:
        if node.name in arguments or node.name in results:
            continue
        copy = function.node_def.add()
        copy.CopyFrom(node)
        copy.input[:] = [names.of(text) for text in node.input]
        if OUTPUTS in copy.attr:
            del copy.attr[OUTPUTS]
    return function


def _check_type(signature: OpDef, arg: OpDef.ArgDef) -> None:
    if arg.type == types_pb2.DT_INVALID:
        raise FunctionError(
            f"function {signature.name!r}: the type of {arg.name!r} depends on "
            "attributes of the call; only functions of fixed types can be rewritten"
        )


def _argument(function: FunctionDef, index: int, known: Known) -> NodeDef:
    """Return the node of an argument, with all that is known of it.

    A handle is an `_Arg`, as in the runtime: a Placeholder forgets the shape of the
    variable behind it.
    """
    arg = function.signature.input_arg[index]
    node = NodeDef(name=arg.name)
    # `in` first: reading a missing key of a protobuf map creates it.
    if index in function.arg_attr:
        for name, value in function.arg_attr[index].attr.items():
            if name.startswith("_"):
                node.attr[name].CopyFrom(value)
    if arg.type in _HANDLES:
        node.op = "_Arg"
        node.attr["T"].type = arg.type
        node.attr["index"].i = index
        _tell_contents(node, known)
    else:
        node.op = "Placeholder"
        node.attr["dtype"].type = arg.type
        _tell_shape(node, known)
    return node


def _tell_contents(node: NodeDef, known: Known) -> None:
    if not known.contents:
        return
    dtypes, shapes = node.attr["_handle_dtypes"].list, node.attr["_handle_shapes"].list
    dtypes.ClearField("type")
    shapes.ClearField("shape")
    for dtype, shape in known.contents:
        dtypes.type.append(dtype)
        shapes.shape.append(proto_from_shape(shape))


def _tell_shape(node: NodeDef, known: Known) -> None:
    if known.shape is not None:
        node.attr["shape"].shape.CopyFrom(proto_from_shape(known.shape))
    elif _SHAPES in node.attr:
        given = node.attr[_SHAPES]
        shape = given.list.shape[0] if given.list.shape else given.shape
        node.attr["shape"].shape.CopyFrom(shape)


def _result_names(function: FunctionDef) -> tuple[str, ...]:
    """Name the nodes that stand for the results, unlike any node of the body."""
    taken = {str(node.name) for node in function.node_def}
    taken |= {str(arg.name) for arg in function.signature.input_arg}
    names = []
    for arg in function.signature.output_arg:
        name = str(arg.name)
        while name in taken:
            name += "_result"
        taken.add(name)
        names.append(name)
    return tuple(names)


def _result(name: str, arg: OpDef.ArgDef, source: str) -> NodeDef:
    node = NodeDef(name=name, op="Identity", input=[source])
    node.attr["T"].type = arg.type
    return node
