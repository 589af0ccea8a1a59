"""Whether what has effects, or asserts something, still runs before what waited for it.

An edge of the graph as given counts as kept if the new graph leads from the one node to
the other through new nodes. Of a node that some reader no longer waits for, the effects
that lie before it have to come before that reader in another way. So whatever reached a
fetch, or another effect, still does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.op_table import INPUT_OPS, LOOK_OPS, READ_OPS, VARIABLE_OPS
from grappler_pass.graph.op_traits import has_effects
from grappler_pass.graph.walks import reached
from grappler_pass.rewriting.named_graphs import name_in, readers_in

# They have state, and change none.
_ONLY_READ = READ_OPS | LOOK_OPS | VARIABLE_OPS | INPUT_OPS

Nodes = Mapping[str, NodeDef]


def lost_effects(
    changed: Iterable[str], old: Nodes, new: Nodes
) -> Iterator[tuple[str, str]]:
    """Yield nodes that do not wait for an effect any more, each with what has it.

    `changed` names the old nodes that have other inputs among the new.
    """
    behind = _at_or_behind_effects(old)
    for name in changed:
        awaited = _sources(old[name]) & behind
        near = _near(name, new, old) if awaited else set()
        given_up = awaited - near
        missing = set(_effects(given_up, old, near)) if given_up else set()
        yield from ((name, effect) for effect in _not_before(name, missing, new))


def has_effect(op: str) -> bool:
    """Return whether it can be seen that an op runs, or that it does not."""
    return has_effects(op) and op not in _ONLY_READ


def _sources(node: NodeDef) -> set[str]:
    return set(map(name_in, node.input))


def _at_or_behind_effects(nodes: Nodes) -> set[str]:
    """Name the nodes that have effects, and all that wait for one of these."""
    readers = readers_in(nodes.values(), _sources)
    effects = (name for name, node in nodes.items() if has_effect(node.op))
    return set(reached(effects, lambda name: [n.name for n in readers.get(name, ())]))


def _near(name: str, new: Nodes, old: Nodes) -> set[str]:
    """Name the given nodes that a node waits for through new ones, and their sources.

    A read that stands for an equal one waits for the same.
    """
    found = set(
        reached(_sources(new[name]), lambda s: () if s in old else _sources(new[s]))
    )
    return found.union(*(_sources(new[source]) for source in found))


def _effects(start: set[str], old: Nodes, near: set[str]) -> Iterator[str]:
    """Yield the last effects on the ways to some nodes that lead past what is near."""

    def before(name: str) -> Iterable[str]:
        return () if has_effect(old[name].op) else _sources(old[name]) - near

    return (name for name in reached(start, before) if has_effect(old[name].op))


def _not_before(name: str, missing: set[str], new: Nodes) -> set[str]:
    """Return what of the missing nodes does not lead to a node in the new graph."""
    for source in reached([name] if missing else [], lambda n: _sources(new[n])):
        missing = missing - {source}
        if not missing:
            break
    return missing
