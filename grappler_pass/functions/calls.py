"""How nodes call functions: which, and with which of their inputs.

A function whose call is not known here (one of `tf.data`, one of a custom op) is left
alone: what its arguments are is the op's secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.functions.conversion import Library, called_by
from grappler_pass.graph.op_table import CALL_OPS
from grappler_pass.graph.walks import function_attrs


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
    waiting = [(name, False) for name in _called(nodes, library)]
    while waiting:
        name, callees_done = waiting.pop()
        if callees_done:
            done.append(name)
        elif name not in met:
            met.add(name)
            waiting.append((name, True))
            waiting.extend((n, False) for n in _called(library[name].node_def, library))
    return tuple(reversed(done))


def _called(nodes: Iterable[NodeDef], library: Library) -> list[str]:
    calls = (call_of(node, library) for node in nodes)
    return [name for call in calls if call is not None for name in call.functions]


def rename_functions(node: NodeDef, names: dict[str, str]) -> None:
    """Have a node call others, in place."""
    if node.op in names:
        node.op = names[node.op]
    for function in function_attrs(node):
        function.name = names.get(function.name, function.name)
