"""Put rewritten bodies in the place of those a graph calls, under new names.

A function may be called from elsewhere too, where it is to stay as it is, or be
rewritten otherwise. So each changed body becomes a function of its own, and so does
every function on the way to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.functions.calls import rename_functions
from grappler_pass.functions.conversion import (
    Library,
    called_by,
    function_from_graph,
    library_of,
    reachable_from,
)


def with_bodies(
    graph_def: GraphDef,
    changed: Mapping[str, GraphDef],
    new_name: Callable[[str], str],
) -> GraphDef:
    """Return a graph that calls rewritten functions.

    Before   while(body=f), f calls g                 g was rewritten
    After    while(body=f'), f' calls g'              f and g are as they were

    Args:
      graph_def: the outermost graph; not modified.
      changed: rewritten graphs by name of function; that of the outermost graph itself
        by the empty name.
      new_name: from the name of a function to that of its copy, which nothing has yet.
    """
    library = dict(library_of(graph_def))
    outermost = GraphDef()
    outermost.CopyFrom(changed.get("", graph_def))
    names = {name: new_name(name) for name in _affected(library, changed)}
    for name, copied_name in names.items():
        function = library[name]
        if name in changed:
            function = function_from_graph(changed[name], function)
        copied = type(function)()
        copied.CopyFrom(function)
        copied.signature.name = copied_name
        for node in copied.node_def:
            rename_functions(node, names)
        library[copied_name] = copied
    for node in outermost.node:
        rename_functions(node, names)
    outermost.library.ClearField("function")
    for name in reachable_from(outermost.node, library):
        outermost.library.function.append(library[name])
    return outermost


def _affected(library: Library, changed: Mapping[str, GraphDef]) -> tuple[str, ...]:
    """Name the functions that changed, or that call one that is affected."""
    affected = {name for name in library if name in changed}
    count = -1
    while count < len(affected):
        count = len(affected)
        affected |= {
            name
            for name, function in library.items()
            if any(
                affected.intersection(called_by(n, library)) for n in function.node_def
            )
        }
    return tuple(name for name in library if name in affected)
