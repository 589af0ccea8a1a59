"""What the marks on a graph's nodes say when Grappler passes it, and its traces show.

Fused and folded nodes have lost their marks. What they were made of is looked up in the
graphs as traced, where these still exist; else they go with their name scope, since
inlining puts every function's nodes into a scope of its own. Operations as traced know
shapes, too, and which variables they captured.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from grappler_pass.annotations import FLOAT32, FORWARD, STAMP
from grappler_pass.eligibility.exclusions import differentiated, finder
from grappler_pass.graph.op_table import FORWARDING_OPS, PRODUCT_OPS, REF_VARIABLE_OPS
from grappler_pass.graph.walks import reached
from tf_amp._tensorflow_private import tracing
from tf_amp._tensorflow_private.tracing import attribute_of
from tf_amp.tracing import graph_names
from tf_amp.tracing.stamps import OFF, Stamp, forward_from, traced_op, why_float32

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph.shapes import Shapes
    from grappler_pass.graph.view import Graph, Node

# Operations that seed low precision are stamped whenever their function was traced
# under settings, since Grappler makes no new ones but the fused kinds.
_STAMPED_OPS = frozenset(op for op in PRODUCT_OPS if not op.startswith("_"))

Canonical = Callable[[str], str | None]


class Marks(NamedTuple):
    """What the stamps of one graph say.

    Attributes:
      settings: id of the settings most operations were traced under; None without any.
      graph: name, for people, of the function most of those operations come from.
      strangers: nodes from functions traced under other settings, or under none; they
        keep their dtype.
    """

    settings: str | None
    graph: str
    strangers: tuple[str, ...] = ()


def _name_in(stamps: Sequence[Stamp]) -> str:
    """Return the name, for people, of what most operations come from."""
    name = _most_common(stamp.graph for stamp in stamps) or ""
    numbers = (stamp.number for stamp in stamps if stamp.graph == name)
    graph = graph_names.graph_of(_most_common(numbers))
    return name if graph is None else graph_names.name_of(graph)


def _unless_off(settings: str) -> str | None:
    return None if settings == OFF else settings


def main_settings(data: bytes) -> tuple[str, str | None]:
    """Return the name of a serialized GraphDef, and the settings of most operations."""
    from tensorflow.core.framework.graph_pb2 import GraphDef

    stamps = tuple(_stamps(GraphDef.FromString(data)).values())
    return _name_in(stamps), _most_common(stamp.settings for stamp in stamps)


def settings_in(graph_def: Any, canonical: Canonical = _unless_off) -> tuple[str, ...]:
    """Return the ids of all settings that parts of a graph were traced under.

    Args:
      graph_def: the graph that Grappler passes.
      canonical: as for `marks_from_graph_def`.

    Returns:
      The canonical ids, those of most operations first.
    """
    canonical = functools.cache(canonical)
    ids = (canonical(str(stamp.settings)) for stamp in _stamps(graph_def).values())
    return tuple(i for i, _ in Counter(ids).most_common() if i is not None)


def marks_from_graph_def(
    graph_def: Any, canonical: Canonical = _unless_off, settings: str | None = None
) -> Marks:
    """Read the stamps of a graph that Grappler passes.

    Args:
      graph_def: the graph.
      canonical: returns for settings the first of those that rewrite in the same way;
        None for settings that rewrite nothing.
      settings: whose strangers are wanted; by default those of most operations.
    """
    canonical = functools.cache(canonical)
    stamps = _stamps(graph_def)
    owners = {name: canonical(str(stamp.settings)) for name, stamp in stamps.items()}
    most = _most_common(owners.values())
    settings = settings or most
    if most is None or settings is None:
        return Marks(None, "")
    own = [stamp for name, stamp in stamps.items() if owners[name] == settings]
    main = graph_names.graph_of(_most_common(stamp.number for stamp in own))
    for node in graph_def.node:
        if node.name in owners:
            continue
        op = graph_names.op_named(main, node.name) if main is not None else None
        if op is not None:
            stamp = attribute_of(op, STAMP)
            traced = stamp and str(Stamp.from_bytes(stamp).settings)
            owners[node.name] = canonical(traced) if traced else None
        elif node.op in _STAMPED_OPS:
            owners[node.name] = None
    strangers: tuple[str, ...] = ()
    if set(owners.values()) != {settings}:
        owner_of = _by_scope(owners, settings)
        names = (node.name for node in graph_def.node)
        strangers = tuple(name for name in names if owner_of(name) != settings)
    return Marks(settings, _name_in(own), strangers)


def excluded_parts(
    graph_def: Any, patterns: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Name the fused nodes of which a part is to stay float32, with the reason.

    Args:
      graph_def: the graph that Grappler passes.
      patterns: the user's regular expressions.
    """
    find = finder(patterns)
    numbers = {name: stamp.number for name, stamp in _stamps(graph_def).items()}
    number_of = _by_scope(numbers, _most_common(numbers.values()))
    float32 = {node.name for node in graph_def.node if FLOAT32 in node.attr}
    found: list[tuple[str, str]] = []
    for node in graph_def.node:
        if node.name in numbers:
            continue
        graph = graph_names.graph_of(number_of(node.name))
        last = graph and graph_names.inlined_op(graph, node.name)
        why = ""
        for part in graph_names.ops_behind(last, node.op) if last is not None else ():
            if scope := why_float32(part):
                why = f"{scope}, around {part.name}"
            why = why or next(filter(None, map(find, forward_from(part).names)), "")
            if why:
                break
        sources = (text.lstrip("^").partition(":")[0] for text in node.input)
        if graph is None and not float32.isdisjoint(sources):
            # Traced by another process, so that its parts cannot be looked up.
            why = "what it reads is to stay float32"
        if why:
            found.append((node.name, why))
    return tuple(found)


def forward_names(node: Any) -> tuple[str, ...]:
    """Return the names of what a node is a gradient of; none where it is not known.

    Args:
      node: of a graph that Grappler has passed.
    """
    if FORWARD in node.attr:
        return tuple(name.decode() for name in node.attr[FORWARD].list.s)
    op = traced_op(node)
    return forward_from(op).names[1:] if op is not None else ()


def is_gradient(view: Graph, node: Node) -> bool:
    """Return whether a node is of the backward pass: a gradient, or a sum of some.

    A sum of what several readers of a tensor contribute is no operation's gradient.
    """
    if differentiated(node.name) or forward_names(node.proto):
        return True
    summed = node.inputs if node.op == "AddN" else ()
    return bool(summed) and all(is_gradient(view, view.nodes[p.node]) for p in summed)


def traced_in(graph_def: Any) -> list[Any]:
    """Return the graphs, as traced, that a graph's nodes come from, if still known."""
    numbers = {stamp.number for stamp in _stamps(graph_def).values()}
    graphs = map(graph_names.graph_of, numbers)
    return [graph for graph in graphs if graph is not None]


def sent_settings_in(graph_def: Any) -> frozenset[tuple[str, str]]:
    """Return the ids of settings with what another process has sent of them, or ""."""
    stamps = _stamps(graph_def).values()
    return frozenset((str(s.settings), s.sent) for s in stamps if s.settings != OFF)


def _stamps(graph_def: Any) -> dict[str, Stamp]:
    # A graph has few different ones.
    read = functools.cache(Stamp.from_bytes)
    return {
        node.name: read(node.attr[STAMP].s)
        for node in graph_def.node
        if STAMP in node.attr
    }


def _by_scope(
    known: Mapping[str, str | None], otherwise: str | None
) -> Callable[[str], str | None]:
    """Return what is known of a node, else of most nodes in its name scope."""
    if {*known.values()} <= {otherwise}:
        return lambda name: otherwise
    scopes: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for name, value in known.items():
        for scope in _scopes(name):
            scopes[scope][value] += 1

    def value_of(name: str) -> str | None:
        if name in known:
            return known[name]
        for scope in _scopes(name):
            if scope in scopes:
                return scopes[scope].most_common(1)[0][0]
        return otherwise

    return value_of


def _scopes(name: str) -> Iterator[str]:
    """Yield the name scopes around a node, innermost first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _most_common(values: Iterable[str | None]) -> str | None:
    ranked = Counter(value for value in values if value is not None).most_common(1)
    return ranked[0][0] if ranked else None


# The value of the variable that a node is or reads, as a NumPy array; None: not known.
Values = Callable[[Any], Any]


def with_traced_shapes(graph_def: GraphDef, shapes: Shapes) -> Shapes:
    """Return shapes with those of calls, which are known from tracing alone."""
    completed = dict(shapes)
    for node in graph_def.node:
        known = shapes.get(node.name, (None,))
        op = traced_op(node) if None in known else None
        if op is not None:
            ranks = (tensor.shape for tensor in op.outputs)
            completed[node.name] = tuple(
                None if shape.rank is None else tuple(shape.as_list())
                for shape in ranks
            )
    return completed


def variable_names(view: Graph) -> Mapping[str, str]:
    """Return what the program calls its variables, by name of the handle's node.

    Variables of Keras have their path, which TensorFlow's name may differ from.
    """
    found: dict[str, str] = {}
    paths = tracing.keras_paths()
    for node in view.nodes:
        if node.op != "_Arg":
            continue

        def readers(index: int, handle: int = node.index) -> list[int]:
            is_end = index != handle and view.nodes[index].op not in FORWARDING_OPS
            ports = () if is_end else view.output_ports(index)
            return [reader.node for port in ports for reader in view.readers(port)]

        # What reads the handle, in branches too.
        _, *others = (view.nodes[index] for index in reached([node.index], readers))
        users = (each for each in others if each.op not in FORWARDING_OPS)
        read = (_variable_of(each.proto) for each in users)
        variable = next((each for each in read if each is not None), None)
        if variable is not None:
            name = str(variable.name).partition(":")[0]
            found[node.name] = paths.get(id(variable), name)
    return found


def values_of_function(graph: Any) -> Values:
    """Read the variables that a function uses; return them by node, as NumPy arrays.

    Args:
      graph: of the function; what functions within it use is among its own.
    """
    handles = {}
    for tensor, _ in graph.captures:
        handle = tracing.captured_from(tensor)
        contents = tracing.handle_contents(handle) if hasattr(handle, "numpy") else ()
        if len(contents) == 1:
            handles[id(handle)] = (handle, tracing.variable_value(handle, contents[0]))

    def value_of(node: Any) -> Any:
        op = traced_op(node)
        if op is None or not op.inputs:
            return None
        value = handles.get(id(tracing.captured_from(op.inputs[0])))
        return None if value is None else value[1].numpy()

    return value_of


def values_of_session(session: Any) -> Values:
    """Return variables of a Session's graph by node, as NumPy arrays."""

    def value_of(node: Any) -> Any:
        op = graph_names.op_named(session.graph, node.name)
        if op is None:
            return None
        if op.type in REF_VARIABLE_OPS:
            return session.run(op.outputs[0])
        readers = op.outputs[0].consumers() if op.type == "VarHandleOp" else []
        read = next((r for r in readers if r.type == "ReadVariableOp"), None)
        return None if read is None else session.run(read.outputs[0])

    return value_of


def _variable_of(reader: Any) -> Any:
    """Return the variable whose handle a traced operation takes first, or None."""
    op = traced_op(reader)
    handle = tracing.captured_from(op.inputs[0]) if op and op.inputs else None
    if op is None or not hasattr(handle, "numpy"):
        return None
    graphs = tracing.outwards(op.graph)
    variables = (v for graph in graphs for v in getattr(graph, "variables", ()))
    return next((v for v in variables if v.handle is handle), None)
