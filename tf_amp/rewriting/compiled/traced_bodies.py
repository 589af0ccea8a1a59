"""Rewritten functions as they were traced, for whoever stores a graph that calls them.

What a program exports is its own model, in the types that it was written in, with no
function that only this process knows.
"""

from __future__ import annotations

import weakref
import zlib
from typing import Any

# By the name of a function, as it was; None for one that was made for another alone.
_bodies: dict[str, bytes | None] = {}


def keep(graph: Any, definition: Any, copies: tuple[str, ...]) -> None:
    """Remember a function as long as its traced graph lives.

    Args:
      graph: as traced.
      definition: the FunctionDef before it is rewritten.
      copies: names of the functions that are made for it alone.
    """
    name = str(definition.signature.name)
    _bodies.update(dict.fromkeys(copies))
    _bodies[name] = zlib.compress(definition.SerializeToString(), 1)
    weakref.finalize(graph, _forget, (name, *copies)).atexit = False


def has_rewritten(graph_def: Any) -> bool:
    """Return whether a graph calls functions that were rewritten for XLA."""
    return any(f.signature.name in _bodies for f in graph_def.library.function)


def restore(graph_def: Any) -> None:
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


def _forget(names: tuple[str, ...]) -> None:
    for name in names:
        _bodies.pop(name, None)
