"""A function of a library as a graph that the pass takes, and back; and calls of it.

    FunctionDef --> GraphDef + Item --> ... --> GraphDef --> FunctionDef

Arguments become placeholders, results identities that are fetched: whatever happens in
between, the signature stays. Functions that the body calls, the bodies of its loops and
branches among them, come along in the graph's library, as they are.

A function whose call is not known here (one of `tf.data`, one of a custom op) is left
alone: what its arguments are is the op's secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.op_def_pb2 import OpDef

from grappler_pass.errors import AmpError
from grappler_pass.graph.editing import split_input
from grappler_pass.graph.op_table import CALL_OPS
from grappler_pass.graph.shapes import Shape, proto_from_shape
from grappler_pass.graph.type_slots import attr_of, op_def_of
from grappler_pass.graph.view import Graph, Item
from grappler_pass.graph.walks import function_attrs, reached

Library = Mapping[str, FunctionDef]

# On a node whose op TensorFlow does not know: the names of its outputs, as they are
# numbered in the graph.
_OUTPUTS = "_tf_amp_outputs"
# What the runtime writes on the node of an argument, in `_Arg` and `Placeholder` alike.
_SHAPES = "_output_shapes"
_HANDLES = frozenset({types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})


class FunctionError(AmpError, ValueError):
    """A function cannot be taken for a graph; the message names it and why."""


class Known(NamedTuple):
    """What is known of an argument beside its type.

    Attributes:
      shape: of the tensor; None: what the function knows, if anything.
      contents: of a handle, dtype (DataType enum) and shape of what it refers to.
    """

    shape: Shape | None = None
    contents: tuple[tuple[int, Shape | None], ...] = ()


def library_of(graph: GraphDef | Graph) -> dict[str, FunctionDef]:
    """Return the functions of a graph by name."""
    return {str(f.signature.name): f for f in graph.library.function}


def nodes_by_function(graph_def: GraphDef) -> dict[str, Sequence[NodeDef]]:
    """Return the nodes of a graph, under the empty name, and those of its functions."""
    functions = library_of(graph_def).items()
    return {"": graph_def.node, **{name: f.node_def for name, f in functions}}


def called_by(node: NodeDef, library: Library) -> tuple[str, ...]:
    """Name the functions of a library that a node calls, as an op or by attributes."""
    names = (node.op, *(each.name for each in function_attrs(node)))
    return tuple(dict.fromkeys(str(name) for name in names if name in library))


def reachable_from(nodes: Iterable[NodeDef], library: Library) -> tuple[str, ...]:
    """Name all functions that nodes call, and what these call, callers first."""

    def called_in(nodes: Iterable[NodeDef]) -> Iterator[str]:
        return (name for node in nodes for name in called_by(node, library))

    return tuple(reached(called_in(nodes), lambda n: called_in(library[n].node_def)))


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
    graph_def = GraphDef()
    for index, arg in enumerate(signature.input_arg):
        _check_type(signature, arg)
        graph_def.node.append(_argument(function, index, Known()))
    set_known(graph_def, function, known)
    names, unknown = _names_in_graph(function, library)
    for node in function.node_def:
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        copy.input[:] = [names[text] for text in node.input]
        if outputs := unknown.get(node.name):
            copy.attr[_OUTPUTS].list.s.extend(text.encode() for text in outputs)
    results = _result_names(function)
    for arg, name in zip(signature.output_arg, results, strict=True):
        _check_type(signature, arg)
        source = names[function.ret[arg.name]]
        result = graph_def.node.add(name=name, op="Identity", input=[source])
        result.attr["T"].type = arg.type
    for name in reachable_from(function.node_def, library):
        graph_def.library.function.add().CopyFrom(library[name])
    kept = tuple(dict.fromkeys(function.control_ret.values()))
    arguments = tuple(str(arg.name) for arg in signature.input_arg)
    return graph_def, Item(fetch=results, feed=arguments, preserve=kept)


def set_known(
    graph_def: GraphDef, function: FunctionDef, known: Sequence[Known]
) -> None:
    """Write on a function's graph, in place, what is known of its first arguments."""
    for index, facts in enumerate(known):
        graph_def.node[index].CopyFrom(_argument(function, index, facts))


def function_from_graph(graph_def: GraphDef, original: FunctionDef) -> FunctionDef:
    """Return a function whose body is a graph made from `original`'s, rewritten.

    Signature, attributes and all that is known of the arguments are the original's.
    What comes from `graph_from_function` unchanged gives the same function.

    Args:
      graph_def: not modified; its library holds the functions that it calls as ops.
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
    library = library_of(graph_def)
    outputs = {name: _outputs(node, library) for name, node in nodes.items()}

    def in_body(text: str) -> str:
        name, number = split_input(text)
        if number < 0 or name in arguments:
            return text
        written = outputs.get(name) or ()
        if number >= len(written):
            raise FunctionError(f"the graph reads {text!r}, which no node writes")
        return written[number]

    for arg, name in zip(original.signature.output_arg, results, strict=True):
        function.ret[arg.name] = in_body(nodes[name].input[0])
    for node in graph_def.node:
        if node.name in arguments or node.name in results:
            continue
        copy = function.node_def.add()
        copy.CopyFrom(node)
        copy.input[:] = map(in_body, node.input)
        copy.attr.pop(_OUTPUTS, None)
    return function


# A body names node, output argument and number in it (`split:output:1`), a graph node
# and number among all outputs of the node (`split:1`).


def _names_in_graph(
    function: FunctionDef, library: Library
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return how a graph names what a function's body reads, by the body's names.

    And what is read of each node whose op TensorFlow does not know: nothing says how
    many outputs there are, so they count as they are met.
    """
    arguments = {arg.name for arg in function.signature.input_arg}
    numbers: dict[str, int] = {}
    unknown: dict[str, list[str]] = {}
    for node in function.node_def:
        outputs = _outputs(node, library)
        if outputs is None:
            unknown[node.name] = []
        else:
            numbers.update((text, number) for number, text in enumerate(outputs))
    names: dict[str, str] = {}
    inputs = (text for node in function.node_def for text in node.input)
    for text in (*inputs, *function.ret.values()):
        name, _, rest = text.partition(":")
        if text.startswith("^") or name in arguments:
            names[text] = name
            continue
        met = unknown.get(name)
        if met is not None and rest and text not in names:
            numbers[text] = len(met)
            met.append(rest)
        number = numbers.get(text, numbers.get(f"{text}:0"))
        if number is None:
            raise FunctionError(
                f"function {function.signature.name!r} reads {text!r}: there is no "
                "such argument or node, or TensorFlow does not know its op"
            )
        names[text] = f"{name}:{number}" if number else name
    return names, unknown


def _outputs(node: NodeDef, library: Library) -> list[str] | None:
    """Name the outputs of a node as a body does; None where its op is not known."""
    if _OUTPUTS in node.attr:
        return [f"{node.name}:{text.decode()}" for text in node.attr[_OUTPUTS].list.s]
    called = library.get(node.op)
    op_def = op_def_of(node.op) if called is None else called.signature
    if op_def is None:
        return None
    names: list[str] = []
    for arg in op_def.output_arg:
        count = 1
        if arg.number_attr:
            count = attr_of(node, arg.number_attr, op_def).i
        elif arg.type_list_attr:
            count = len(attr_of(node, arg.type_list_attr, op_def).list.type)
        names += (f"{node.name}:{arg.name}:{number}" for number in range(count))
    return names


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
        if known.contents:
            dtypes, shapes = zip(*known.contents, strict=True)
            node.attr["_handle_dtypes"].list.type[:] = dtypes
            protos = node.attr["_handle_shapes"].list
            protos.ClearField("shape")
            protos.shape.extend(map(proto_from_shape, shapes))
        return node
    node.op = "Placeholder"
    node.attr["dtype"].type = arg.type
    if known.shape is not None:
        node.attr["shape"].shape.CopyFrom(proto_from_shape(known.shape))
    elif _SHAPES in node.attr:
        given = node.attr[_SHAPES]
        shape = given.list.shape[0] if given.list.shape else given.shape
        node.attr["shape"].shape.CopyFrom(shape)
    return node


def _result_names(function: FunctionDef) -> tuple[str, ...]:
    """Name the nodes that stand for the results, unlike any node of the body."""
    signature = function.signature
    given = (*function.node_def, *signature.input_arg)
    taken, names = {str(each.name) for each in given}, list[str]()
    for arg in signature.output_arg:
        name = str(arg.name)
        while name in taken or name in names:
            name += "_result"
        names.append(name)
    return tuple(names)


class Call(NamedTuple):
    """Functions that a node may run; the data input that is their first argument."""

    functions: tuple[str, ...]
    first: int


def call_of(node: NodeDef, library: Library) -> Call | None:
    """Return what a node calls; None where it calls nothing, or in an unknown way."""
    if node.op in library:
        return Call((str(node.op),), 0)
    first = CALL_OPS.get(node.op)
    functions = () if first is None else called_by(node, library)
    return Call(functions, first or 0) if functions else None


def callers_first(nodes: Iterable[NodeDef], library: Library) -> tuple[str, ...]:
    """Name all functions that nodes call in a known way, callers before callees.

    Of functions that call each other, the one that is called first comes first.
    """
    done: list[str] = []
    met: set[str] = set()

    def visit(nodes: Iterable[NodeDef]) -> None:
        calls = filter(None, (call_of(node, library) for node in nodes))
        for name in reversed([name for call in calls for name in call.functions]):
            if name not in met:
                met.add(name)
                visit(library[name].node_def)
                done.append(name)

    visit(nodes)
    return tuple(reversed(done))


def rename_functions(node: NodeDef, names: dict[str, str]) -> None:
    """Have a node call others, in place."""
    if node.op in names:
        node.op = names[node.op]
    for function in function_attrs(node):
        function.name = names.get(function.name, function.name)
