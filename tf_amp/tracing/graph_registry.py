"""Graphs by the number in their operations' stamps, while they live.

Grappler passes nodes that it has fused, without their attributes and under the name
of the last of them; what they were fused from is read from the graph as traced.
"""

from __future__ import annotations

import itertools
import re
import secrets
import weakref
from collections.abc import Iterator
from typing import Any

from grappler_pass.fork_safety import renewed_lock
from grappler_pass.graph.fusions import root_of

_NUMBER = "_tf_amp_number"
# Ops of all versions are fused into one.
_VERSION = re.compile(r"V\d+$")
# None stands for a longer chain than the one of the approximate gelu.
_LONGEST_CHAIN = 12

_graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_counter = itertools.count(1)
# Another process' numbers, as a server meets them, must not be taken for ours.
_process = secrets.token_hex(3)
_lock = renewed_lock()


def number_of(graph: Any) -> str:
    """Return the number under which a graph is found again."""
    number: str | None = getattr(graph, _NUMBER, None)
    if number is None:
        with _lock:
            number = getattr(graph, _NUMBER, None) or f"{_process}-{next(_counter)}"
            setattr(graph, _NUMBER, number)
            _graphs[number] = graph
    return number


def graph_of(number: str | None) -> Any | None:
    """Return the numbered graph if it still exists."""
    return _graphs.get(number or "")


def op_named(graph: Any, name: str) -> Any | None:
    """Return an operation by its own name; None where the graph has none such."""
    try:
        return graph.get_operation_by_name(name)
    except (KeyError, ValueError):
        return None


def inlined_op(graph: Any, name: str) -> Any | None:
    """Return an operation by its name behind the scopes that inlining has put there."""
    named = (op_named(graph, own_name) for own_name in _without_scopes(name))
    return next((op for op in named if op is not None), None)


def ops_behind(last: Any, fused_op: str) -> tuple[Any, ...]:
    """Return the operations that a fused node stands for, given the last of them.

    Those on the nearest way from what it begins with; where there are two such ways,
    of both, since either may be the one.
    """
    root = root_of(fused_op)
    if root is None:
        return (last,)
    kind = _VERSION.sub("", root)
    paths: list[tuple[Any, ...]] = [(last,)]
    for _ in range(_LONGEST_CHAIN + 1):
        ended = [path for path in paths if path[-1].type.startswith(kind)]
        if ended:
            return tuple(dict.fromkeys(op for path in ended for op in path))
        del paths[_LONGEST_CHAIN:]
        paths = [(*path, t.op) for path in paths for t in path[-1].inputs]
    return (last,)


def _without_scopes(name: str) -> Iterator[str]:
    """Yield a name, then without its outermost scope, and so on."""
    yield name
    while "/" in name:
        name = name.partition("/")[2]
        yield name
