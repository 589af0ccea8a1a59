"""What must hold of a graph before and after a rewrite.

Independent of how the rewrite was decided: reads OpDefs and the two GraphDefs only.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.errors import AmpError
from grappler_pass.graph.type_slots import Arg, op_def_of, signature_of
from grappler_pass.graph.view import Item, split_input
from grappler_pass.rewriting.effects import Nodes, has_effect, lost_effects

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
            if known and not _agree(wanted[position].dtype, given[output].dtype):
                yield (
                    f"input {position} of {node.name!r} ({node.op}) wants dtype "
                    f"{types_pb2.DataType.Name(wanted[position].dtype)}, {text!r} "
                    f"gives {types_pb2.DataType.Name(given[output].dtype)}"
                )


def _agree(wanted: int, given: int) -> bool:
    return wanted % _REF_OFFSET == given % _REF_OFFSET


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
    _verify_soundness(before, after)
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


def _verify_soundness(before: GraphDef, after: GraphDef) -> None:
    faults = list(_faults(after))
    earlier = set(_faults(before)) if faults else set()
    for fault in faults:
        if fault not in earlier:
            raise VerifyError(fault)


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
