"""Functions that XLA compiles as a whole: what is left alone, and how a copy is made.

The copy is made from the function as it was traced, of itself and of all that it calls,
without what only watches: XLA cannot call back into this process. Its types are those
that are worth it under XLA. TensorFlow keeps what XLA compiles until the process ends,
and so stays the copy.
"""

from __future__ import annotations

import functools
from collections import defaultdict

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.functions import whole
from grappler_pass.functions.bodies import with_bodies
from grappler_pass.functions.conversion import (
    function_from_graph,
    graph_from_function,
    library_of,
)
from grappler_pass.graph.shapes import shapes_from_graph_def
from tf_amp._tensorflow_private import eager_context, functions
from tf_amp.compare import call_sites
from tf_amp.compare.call_sites import CallSite
from tf_amp.rewriting import compiled, stripping

# Of one function of the program: each shape of its arguments is another one.
_MOST_SHAPES = 3
# By the name of the function, those of its copies.
_copies: dict[str, set[str]] = defaultdict(set)
# How names of functions begin that a tape outside calls, forward and backward.
_OF_TAPES = ("__forward_", "__inference___backward_")


def obstacle(site: CallSite, name: str, device_type: str) -> str:
    """Return why XLA does not compile all of a function; "" where it may."""
    if site.name.startswith(_OF_TAPES):
        return "a tape outside of it needs what it computes in between"
    if len(_copies[name]) >= _MOST_SHAPES:
        return f"it is compiled for {_MOST_SHAPES} shapes of its arguments already"
    try:
        functions.make_xla_ready()
        found = [*functions.definitions(eager_context(), site.name.encode())]
        return whole.obstacle_in(_needed(found), device_type)
    except Exception as error:
        # It is the program's call that asks.
        return f"{type(error).__name__}: {error}"


def make_copy(site: CallSite, name: str, device_type: str) -> None:
    """Give a site the copy of its function that XLA compiles."""
    context = eager_context()
    first, *callees = functions.definitions(context, site.name.encode())
    library = {function.signature.name: function for function in callees}
    graph_def, item = graph_from_function(first, library)
    shapes = functools.partial(shapes_from_graph_def, graph_def)
    changed = call_sites.call_as(
        site,
        functions.WHOLE,
        compiled.rewritten_bodies,
        graph_def,
        item,
        shapes,
        device_type,
    )
    if changed:
        suffix = "__compiled"
        graph_def = with_bodies(graph_def, changed, lambda called: called + suffix)
        first = function_from_graph(graph_def, first)
    copies = whole.compiled_copies(_needed([first, *library_of(graph_def).values()]))
    for copy in copies:
        if not context.has_function(copy.signature.name):
            context.add_function_def(copy)
    _copies[name].add(copies[0].signature.name)
    site.whole = copies[0].signature.name.encode()


def _needed(found: list[FunctionDef]) -> list[FunctionDef]:
    """Return functions without what only this process can use, and what none needs."""
    holder = GraphDef()
    holder.library.function.extend(found)
    stripping.strip(holder)
    return [whole.pruned(function) for function in holder.library.function]
