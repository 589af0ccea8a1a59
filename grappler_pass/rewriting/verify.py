"""What must hold of a graph before and after a rewrite.

Independent of how the rewrite was decided: reads OpDefs and the two GraphDefs only.

Whether what has effects, or asserts something, still runs before what waited for it: an
edge of the graph as given counts as kept if the new graph leads from the one node to
the other through new nodes. Of a node that some reader no longer waits for, the effects
that lie before it have to come before that reader in another way. So whatever reached a
fetch, or another effect, still does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.errors import AmpError
from grappler_pass.graph.editing import name_in, split_input
from grappler_pass.graph.op_table import INPUT_OPS, LOOK_OPS, READ_OPS, VARIABLE_OPS
from grappler_pass.graph.op_traits import has_effects
from grappler_pass.graph.type_slots import Arg, op_def_of, signature_of
from grappler_pass.graph.view import Item
from grappler_pass.graph.walks import reached

_REF_OFFSET = 100


class VerifyError(AmpError, AssertionError):
    """A rewrite produced a graph that TensorFlow would refuse, or another program."""


def _faults(graph_def: GraphDef) -> Iterator[str]:
    """Yield names that two nodes have, and inputs that no node, or another type, has.

    Cycles are not looked for: every edge that a rewrite adds goes along the
    topological order of the graph it was given.
    """
    outputs: dict[str, tuple[Arg, ...]] = {}
    for node in graph_def.node:
        if node.name in outputs:
            yield f"two nodes are called {node.name!r}"
        outputs[node.name] = signature_of(node).outputs
    for node in graph_def.node:
        wanted = signature_of(node).inputs
        for position, text in enumerate(node.input):
            source, output = split_input(text)
            if source not in outputs:
                yield f"input {text!r} of {node.name!r} names no node"
                continue
            given = outputs[source]
            known = 0 <= output < len(given) and position < len(wanted)
            # A reference to a variable may be read as its value.
            dtypes = (wanted[position].dtype, given[output].dtype) if known else (0, 0)
            if dtypes[0] % _REF_OFFSET != dtypes[1] % _REF_OFFSET:
                yield (
                    f"input {position} of {node.name!r} ({node.op}) wants dtype "
                    f"{types_pb2.DataType.Name(dtypes[0])}, {text!r} "
                    f"gives {types_pb2.DataType.Name(dtypes[1])}"
                )


def verify_rewrite(before: GraphDef, after: GraphDef, item: Item) -> None:
    """Check that `after` is sound and keeps what is relied on in `before`.

    Inputs resolve, names are unique and dtypes agree on every edge, but where they do
    not in `before`, either: TensorFlow's own optimizers leave such edges, and it runs
    them. Every node is still there, on its device, in its colocation group, behind its
    control inputs and behind whatever with an effect it waited for; untouchable nodes
    keep op and dtypes, nodes with effects their op; the function library is the same.

    Raises:
      VerifyError: something is missing or differs; the message names it.
    """
    faults = list(_faults(after))
    earlier = set(_faults(before)) if faults else set()
    for fault in faults:
        if fault not in earlier:
            raise VerifyError(fault)
    given: Nodes = {node.name: node for node in before.node}
    nodes: Nodes = {node.name: node for node in after.node}
    changed: list[str] = []
    for old in given.values():
        new = nodes.get(old.name)
        if new is None:
            raise VerifyError(f"node {old.name!r} is gone")
        if new.device != old.device:
            raise VerifyError(f"node {old.name!r} moved to {new.device!r}")
        if old.attr.get("_class") != new.attr.get("_class"):
            raise VerifyError(f"node {old.name!r} changed its colocation group")
        if new.input != old.input:
            changed.append(old.name)
            _verify_controls(old, new, nodes)
        if old.name in item.untouchable and not _same_types(old, new):
            raise VerifyError(f"preserved node {old.name!r} was changed")
        if old.op != new.op and has_effect(old.op):
            raise VerifyError(f"node {old.name!r} ({old.op}) became {new.op}")
    for name, effect in lost_effects(changed, given, nodes):
        raise VerifyError(f"node {name!r} no longer waits for {effect!r}, as it did")
    if before.library != after.library:
        raise VerifyError("the function library was changed")


def _verify_controls(old: NodeDef, new: NodeDef, nodes: Nodes) -> None:
    """Check that the node, or the first part it was split into, waits as before."""
    wanted = {text for text in old.input if text.startswith("^")}
    missing = wanted - set(new.input)
    root = new
    while missing and root.input and root.input[0].startswith(f"{old.name}/tf_amp_"):
        root = nodes[root.input[0]]
        missing -= set(root.input)
    if missing:
        raise VerifyError(f"node {old.name!r} lost control inputs {sorted(missing)}")


def _same_types(old: NodeDef, new: NodeDef) -> bool:
    op_def = op_def_of(old.op)
    attrs = op_def.attr if op_def else ()
    types = [attr.name for attr in attrs if attr.type in ("type", "list(type)")]
    # `get`: reading a missing key of a protobuf map creates it.
    return old.op == new.op and all(old.attr.get(t) == new.attr.get(t) for t in types)


# They have state, and change none.
_ONLY_READ = READ_OPS | LOOK_OPS | VARIABLE_OPS | INPUT_OPS

Nodes = Mapping[str, NodeDef]


def has_effect(op: str) -> bool:
    """Return whether it can be seen that an op runs, or that it does not."""
    return has_effects(op) and op not in _ONLY_READ


def _sources(node: NodeDef) -> set[str]:
    return set(map(name_in, node.input))


def lost_effects(
    changed: Iterable[str], old: Nodes, new: Nodes
) -> Iterator[tuple[str, str]]:
    """Yield nodes that do not wait for an effect any more, each with what has it.

    `changed` names the old nodes that have other inputs among the new.
    """
    readers: dict[str, set[str]] = defaultdict(set)
    for node in old.values():
        for source in _sources(node):
            readers[source].add(node.name)
    effects = (name for name, node in old.items() if has_effect(node.op))
    behind = set(reached(effects, readers.__getitem__))
    for name in changed:
        awaited = _sources(old[name]) & behind
        missing = _no_longer_near(name, awaited, old, new) if awaited else set()
        for source in reached([name] if missing else [], lambda n: _sources(new[n])):
            missing.discard(source)
            if not missing:
                break
        yield from ((name, effect) for effect in missing)


def _no_longer_near(name: str, awaited: set[str], old: Nodes, new: Nodes) -> set[str]:
    """Name the last effects before what a node awaited, past what it is still near.

    It is near the old nodes that it waits for through new ones, and their sources: a
    read that stands for an equal one waits for the same.
    """
    reading = reached(
        _sources(new[name]), lambda s: () if s in old else _sources(new[s])
    )
    near = set(reading)
    near = near.union(*(_sources(new[source]) for source in near))

    def before(name: str) -> Iterable[str]:
        return () if has_effect(old[name].op) else _sources(old[name]) - near

    return {n for n in reached(awaited - near, before) if has_effect(old[n].op)}
