"""What must hold of a rewritten graph, checked without the code under test.

Names, inputs, dtypes on edges, fetches and feeds, control edges, devices, casts: read
from the two GraphDefs and TensorFlow's OpDefs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.op_def_pb2 import OpDef
from tensorflow.python.framework import op_def_registry

from grappler_pass.fusions.kept_weights import STEM
from grappler_pass.graph.view import Item

Rewriter = Callable[[GraphDef], GraphDef]

FLOAT32 = types_pb2.DT_FLOAT
LOW_DTYPES = {"bfloat16": types_pb2.DT_BFLOAT16, "float16": types_pb2.DT_HALF}
REF_OFFSET = 100
_KEEP_DTYPES = ("VarHandle", "ResourceApply", "Assign", "Placeholder", "Apply")


def assert_sound(before: GraphDef, rewrite: Rewriter, item: Item) -> GraphDef:
    """Rewrite `before`, check the result and return it.

    Checks: unique names, inputs resolve, dtypes agree on edges, fetches and feeds keep
    name, op outputs and dtype, control edges between surviving nodes are kept and never
    read a cast, devices and colocation are kept, variables are not retyped, `before` is
    untouched, the rewriting is deterministic, and a second run changes nothing.
    """
    untouched = before.SerializeToString(deterministic=True)
    after = rewrite(before)
    assert before.SerializeToString(deterministic=True) == untouched, "input written"
    assert_valid(after)
    assert_same_promises(before, after, item)
    assert _text(rewrite(before)) == _text(after), "two runs differ"
    again = rewrite(after)
    assert _text(again) == _text(after), _first_difference(after, again)
    return after


def assert_valid(graph_def: GraphDef) -> None:
    """Check that names are unique, inputs resolve and dtypes agree on every edge."""
    nodes = _nodes_by_name(graph_def)
    assert len(nodes) == len(graph_def.node), "a name is used twice"
    library = {f.signature.name: f.signature for f in graph_def.library.function}
    outputs = {name: output_dtypes(node, library) for name, node in nodes.items()}
    for node in graph_def.node:
        data, controls = split_inputs(node)
        for source in controls:
            assert source in nodes, f"{node.name}: control input {source} is missing"
        expected = input_dtypes(node, library)
        if expected is not None:
            assert len(expected) == len(data), f"{node.name}: {len(data)} data inputs"
        for i, (source, port) in enumerate(data):
            assert source in nodes, f"{node.name}: input {source} is missing"
            found = outputs[source]
            if expected is None or found is None:
                continue
            assert port < len(found), f"{node.name} reads {source}:{port}"
            assert found[port] % REF_OFFSET == expected[i] % REF_OFFSET, (
                f"{node.name} ({node.op}) input {i} is {_name(expected[i])}, "
                f"{source}:{port} ({nodes[source].op}) is {_name(found[port])}"
            )


def assert_same_promises(before: GraphDef, after: GraphDef, item: Item) -> None:
    """Check what the caller and the runtime rely on: see `assert_sound`."""
    old, new = _nodes_by_name(before), _nodes_by_name(after)
    old_library = {f.signature.name: f.signature for f in before.library.function}
    for name in (*item.fetch, *item.feed, *item.preserve):
        if name not in old:
            continue
        assert name in new, f"{name} is gone"
        kept = output_dtypes(new[name], old_library)
        assert kept == output_dtypes(old[name], old_library), f"{name} was retyped"
    for name in item.feed:
        if name in old:
            assert old[name] == new[name], f"feed {name} was changed"
    for name, node in new.items():
        if name not in old:
            continue
        was = old[name]
        assert node.device == was.device, f"{name} moved to {node.device!r}"
        assert _colocation(node) == _colocation(was), f"{name} lost its colocation"
        _assert_controls_kept(was, node, old, new)
        if is_stateful(was.op):
            _assert_still_same_state(was, node, old)
    for name, node in old.items():
        if is_stateful(node.op) and node.op not in ("Placeholder", "NoOp"):
            assert name in new, f"stateful {name} ({node.op}) is gone"
    assert after.versions == before.versions, "versions changed"


def _assert_controls_kept(
    was: NodeDef, node: NodeDef, old: dict[str, NodeDef], new: dict[str, NodeDef]
) -> None:
    """A node, or the first of the parts it was split into, waits for what it did."""
    _, had = split_inputs(was)
    waits_for, parts = set(split_inputs(node)[1]), [node]
    # New nodes may go round in a loop.
    seen: set[str] = set()
    while parts:
        sources = {name for name, _ in split_inputs(parts.pop())[0]} - seen
        seen |= sources
        made = [new[s] for s in sources if s not in old]
        # A cast between two parts is one; of what the node reads, none.
        own = f"{node.name}/"
        made = [n for n in made if n.op != "Cast" or n.name.startswith(own)]
        parts.extend(made)
        waits_for.update(c for part in made for c in split_inputs(part)[1])
    missing = set(had) - waits_for
    assert not missing, f"{node.name} no longer waits for {sorted(missing)}"
    for source in split_inputs(node)[1]:
        # What is not computed where it is kept waits to be told so.
        is_told = source.startswith(STEM)
        assert source in old or is_told, f"{node.name} waits for the new node {source}"


def _assert_still_same_state(
    was: NodeDef, node: NodeDef, old: dict[str, NodeDef]
) -> None:
    """A variable, update, random op or list keeps its op; a variable its dtype.

    A read may stand for an equal one: of the same variable, after the same effects.
    """
    if (was.op, node.op) == ("ReadVariableOp", "Identity"):
        (source, _), *others = split_inputs(node)[0]
        equal = old[source]
        assert not others and equal.op == was.op, f"{was.name} reads {source}"
        assert set(equal.input) == set(was.input), f"{source} waits otherwise"
        return
    assert was.op == node.op, f"{was.name}: {was.op} became {node.op}"
    if was.op.startswith(_KEEP_DTYPES) or "Variable" in was.op or "Random" in was.op:
        for key in ("dtype", "T"):
            if key in was.attr:
                assert was.attr[key] == node.attr[key], f"{was.name} was retyped"


def casts_added(before: GraphDef, after: GraphDef) -> int:
    """Return how many more Cast nodes `after` holds; negative when some went."""
    return len(casts(after)) - len(casts(before))


def casts(graph_def: GraphDef) -> list[NodeDef]:
    """Return the Cast nodes of the top level."""
    return [node for node in graph_def.node if node.op == "Cast"]


def casts_down(graph_def: GraphDef) -> list[NodeDef]:
    """Return the casts from float32 to a 16-bit type."""
    return [
        node
        for node in casts(graph_def)
        if node.attr["SrcT"].type == FLOAT32
        and node.attr["DstT"].type in LOW_DTYPES.values()
    ]


def casts_up(graph_def: GraphDef) -> list[NodeDef]:
    """Return the casts from a 16-bit type to float32."""
    return [
        node
        for node in casts(graph_def)
        if node.attr["SrcT"].type in LOW_DTYPES.values()
        and node.attr["DstT"].type == FLOAT32
    ]


def colors(graph_def: GraphDef, names: str, attr: str = "T") -> str:
    """Return one letter per named node: L low, F float32, D float64, - no such attr."""
    nodes = _nodes_by_name(graph_def)
    return " ".join(_color(nodes[name], attr) for name in names.split())


def ops_with_dtype(graph_def: GraphDef, low_dtype: str) -> Counter[str]:
    """Count by op the nodes, casts aside, that have an attribute of that dtype."""
    enum = LOW_DTYPES[low_dtype]
    return Counter(
        node.op
        for node in graph_def.node
        if node.op != "Cast" and any(_holds(v, enum) for v in node.attr.values())
    )


def is_stateful(op: str) -> bool:
    """Return whether the op has side effects or state, by its OpDef."""
    op_def = op_def_registry.get(op)
    return op_def is not None and op_def.is_stateful


def split_inputs(node: NodeDef) -> tuple[list[tuple[str, int]], list[str]]:
    """Return data inputs as (node, output number), and control inputs."""
    data: list[tuple[str, int]] = []
    controls: list[str] = []
    for text in node.input:
        if text.startswith("^"):
            controls.append(text[1:])
        else:
            name, _, port = text.partition(":")
            data.append((name, int(port or 0)))
    return data, controls


def input_dtypes(node: NodeDef, library: dict[str, OpDef]) -> list[int] | None:
    """Return the dtype each data input must have; None where the op is unknown."""
    op_def = op_def_registry.get(node.op) or library.get(node.op)
    return None if op_def is None else list(_dtypes(node, op_def, op_def.input_arg))


def output_dtypes(node: NodeDef, library: dict[str, OpDef]) -> list[int] | None:
    """Return the dtype of each output; None where the op is unknown."""
    op_def = op_def_registry.get(node.op) or library.get(node.op)
    return None if op_def is None else list(_dtypes(node, op_def, op_def.output_arg))


def _dtypes(node: NodeDef, op_def: OpDef, args: list[OpDef.ArgDef]) -> Iterator[int]:
    defaults = {attr.name: attr.default_value for attr in op_def.attr}

    def value(name: str) -> object:
        return node.attr[name] if name in node.attr else defaults[name]

    for arg in args:
        if arg.type_list_attr:
            yield from value(arg.type_list_attr).list.type
            continue
        dtype = value(arg.type_attr).type if arg.type_attr else arg.type
        repeat = value(arg.number_attr).i if arg.number_attr else 1
        yield from [dtype] * repeat


def _nodes_by_name(graph_def: GraphDef) -> dict[str, NodeDef]:
    return {node.name: node for node in graph_def.node}


def _colocation(node: NodeDef) -> list[bytes]:
    return sorted(node.attr["_class"].list.s) if "_class" in node.attr else []


def _color(node: NodeDef, attr: str) -> str:
    if attr not in node.attr:
        return "-"
    dtype = node.attr[attr].type
    if dtype in LOW_DTYPES.values():
        return "L"
    return {FLOAT32: "F", types_pb2.DT_DOUBLE: "D"}.get(dtype, "?")


def _holds(value: object, enum: int) -> bool:
    return value.type == enum or enum in value.list.type


def _name(enum: int) -> str:
    return str(types_pb2.DataType.Name(enum))


def _text(graph_def: GraphDef) -> bytes:
    return graph_def.SerializeToString(deterministic=True)


def _first_difference(after: GraphDef, again: GraphDef) -> str:
    """Name the first node that a second run changed."""
    nodes = _nodes_by_name(after)
    for node in again.node:
        if node.name not in nodes:
            return f"a second run added {node.name} ({node.op})"
        if nodes[node.name] != node:
            return f"a second run changed {nodes[node.name]} to {node}"
    return "a second run removed or reordered nodes"
