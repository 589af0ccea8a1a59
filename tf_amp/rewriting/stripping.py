"""Take out of a graph that is to be stored what only this process can use.

The marks on nodes name settings of this process and functions that it has traced; the
watch for the origin of an overflow calls back into it, as do gradients of branches that
know of overflows; what is printed speaks of a loss scale. None of it means anything
where the graph is loaded, and a callback that is not there fails. What a program
exports is its own model, in the types that it was written in, with no function that
only this process knows: functions that were rewritten for XLA are kept as they were
traced.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable
from typing import Any

from grappler_pass.annotations import NOTICE, REWRITTEN, SCALE, STAMP, WATCH
from tf_amp._tensorflow_private import acting_after, acting_before, graphs

# Of a node with another gradient than TensorFlow's, and how the names of ours begin.
_SLOPE, _OWN_SLOPES = "_gradient_op_type", b"TfAmp"
# A collection of v1 graphs: what optimizers have made.
_UPDATES = "train_op"


def strip(graph_def: Any) -> None:
    """Remove marks and callbacks from a graph and its functions, in place."""
    _strip(graph_def, lambda name: name.startswith(STAMP))


def strip_stamps(graph_def: Any) -> None:
    """Remove, in place, what names this process, but not what the user has asked for.

    Training goes on with such a graph: what he keeps in float32 stays, and so does what
    stands after the unscaling of gradients. Who asked for its loss scale is not known
    there, so that it stays, too.
    """
    _strip(graph_def, lambda name: name in (STAMP, SCALE))


def _strip(graph_def: Any, goes: Callable[[str], bool]) -> None:
    restore_traced(graph_def)
    functions = graph_def.library.function
    nodes = [*graph_def.node, *(node for f in functions for node in f.node_def)]
    for node in nodes:
        if WATCH in node.attr or NOTICE in node.attr:
            # A callback has no results, nor has what prints: it becomes a NoOp.
            name, device = node.name, node.device
            controls = [text for text in node.input if text.startswith("^")]
            node.Clear()
            node.name, node.device, node.op = name, device, "NoOp"
            node.input.extend(controls)
    arguments = (a for f in functions for a in f.arg_attr.values())
    for attr in (each.attr for each in (*nodes, *functions, *arguments)):
        # Branches have the gradients again that TensorFlow has for them.
        own_slope = _SLOPE in attr and attr[_SLOPE].s.startswith(_OWN_SLOPES)
        for name in [*filter(goes, attr), *[_SLOPE] * own_slope]:
            del attr[name]


def is_converted(graph_def: Any) -> bool:
    """Return whether a graph comes from a stored model that this package converted.

    The casts in it have their names, and no node has the mark of a graph that was
    rewritten in this process.
    """
    from grappler_pass.rewriting.apply import CAST_STEM

    if not any(CAST_STEM in node.name for node in graph_def.node):
        return False
    return not any(REWRITTEN in node.attr for node in graph_def.node)


def _strip_created(meta_graph: Any, *args: Any, **kwargs: Any) -> None:
    strip_stamps(meta_graph.graph_def)
    if _UPDATES in meta_graph.collection_def:
        # Those in a branch no import can find.
        names = {node.name for node in meta_graph.graph_def.node}
        listed = meta_graph.collection_def[_UPDATES].node_list.value
        listed[:] = [name for name in listed if name.partition(":")[0] in names]


# Of TensorFlow's makers of a SavedModel's graph, and of a v1 MetaGraphDef, and of the
# `save` of a builder of v1 SavedModels.
stripping_built = acting_after(
    lambda result, *args, **kwargs: strip(graphs.built_graph(result))
)
stripping_created = acting_after(_strip_created)
stripping_saved = acting_before(
    lambda builder, *args, **kwargs: [*map(strip, graphs.builder_graphs(builder))]
)


# By the name of a function, as it was; None for one that was made for another alone.
_bodies: dict[str, bytes | None] = {}


def keep_traced(graph: Any, definition: Any, copies: tuple[str, ...]) -> None:
    """Remember a function as long as its traced graph lives.

    Args:
      graph: as traced.
      definition: the FunctionDef before it is rewritten.
      copies: names of the functions that are made for it alone.
    """
    name = str(definition.signature.name)
    _bodies.update(dict.fromkeys(copies))
    _bodies[name] = zlib.compress(definition.SerializeToString(), 1)

    def forget() -> None:
        for each in (name, *copies):
            _bodies.pop(each, None)

    weakref.finalize(graph, forget).atexit = False


def has_rewritten(graph_def: Any) -> bool:
    """Return whether a graph calls functions that were rewritten for XLA."""
    return any(f.signature.name in _bodies for f in graph_def.library.function)


def restore_traced(graph_def: Any) -> None:
    """Put every rewritten function in a graph's library back, in place."""
    functions = graph_def.library.function
    for function in functions:
        kept = _bodies.get(function.signature.name)
        if kept is not None:
            function.ParseFromString(zlib.decompress(kept))
    remaining = [f for f in functions if _bodies.get(f.signature.name, b"") is not None]
    if len(remaining) < len(functions):
        del functions[:]
        functions.extend(remaining)
