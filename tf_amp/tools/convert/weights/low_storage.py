"""Choose which variables of a stored model can be kept in 16 bits.

Those that are matrices or larger, and are only read: a variable that a function updates
would lose small updates. Vectors and scalars (biases, statistics) weigh nothing and
stay. What cannot go says why.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.saved_object_graph_pb2 import SavedObjectGraph
from tensorflow.python.framework import tensor_util

from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.graph.op_table import LOOK_OPS, READ_OPS, VARIABLE_OPS
from grappler_pass.graph.type_slots import op_def_of
from grappler_pass.graph.view import split_input
from grappler_pass.graph.walks import reached
from grappler_pass.rewriting.named_graphs import name_in
from tf_amp.tools.convert.files.variables_file import VariablesFile
from tf_amp.tools.convert.planner import MAIN
from tf_amp.tools.convert.weights.handles import Group, Handles, Place, Use

_HARMLESS = LOOK_OPS | {"DestroyResourceOp", "DisableCopyOnRead", "NoOp"}
ASSIGNMENTS = frozenset({"Assign", "AssignVariableOp"})
_RESTORE = "RestoreV2"
_LEAST_RANK = 2


@dataclasses.dataclass(frozen=True)
class Chooser:
    """What a choice is made from.

    Bodies are the graph, under `MAIN`, and its functions as graphs; objects those of
    the model, if it has any; `file` is of its variables. Fetched are names of nodes of
    the graph itself that are run for their values; `excluded_by` returns by the name of
    a node what keeps it in float32, or nothing.
    """

    bodies: Mapping[str, GraphDef]
    objects: SavedObjectGraph | None
    file: VariablesFile
    fetched: tuple[str, ...]
    excluded_by: Callable[[str], str]
    dtype: np.dtype[Any]

    def choose(self) -> tuple[list[Group], dict[str, str]]:
        """Return what can go to 16 bits; and by key the matrices that stay, and why."""
        why = [(group, self._why_not(group)) for group in self._groups()]
        kept = {
            key: reason
            for group, reason in why
            for key in sorted(group.keys)
            if reason and self._is_matrix(key)
        }
        return [group for group, reason in why if not reason], kept

    def _groups(self) -> tuple[Group, ...]:
        """Follow every variable, and join what the file shows to be the same one."""
        handles = Handles(self.bodies)
        for node in self.bodies[MAIN].node:
            if node.op in VARIABLE_OPS:
                handles.follow(Place(MAIN, node.name))
        bound = _bound_places(handles, self.objects)
        places: dict[str, list[Place]] = defaultdict(list)
        for group in handles.groups():
            for key in self._restored_keys(group):
                places[key].append(group.places[0])
        keys = self.file.keys_of_objects(self.objects) if self.objects else {}
        for number, key in keys.items():
            places[key].extend(bound.get(number, ()))
        for found in places.values():
            handles.join(found)
        groups = handles.groups()
        group_at = {place: group for group in groups for place in group.places}
        for key, found in places.items():
            if found:
                group = group_at[found[0]]
                group.keys.add(key)
                group.objects.update(n for n, other in keys.items() if other == key)
        return groups

    def _restored_keys(self, group: Group) -> Iterator[str]:
        for use in group.uses:
            restore = self._restore_of(use)
            if restore is None:
                continue
            node, output = restore
            names = self._strings(use.function, node.input[1])
            slices = self._strings(use.function, node.input[2])
            if output < len(names) and not slices[output]:
                yield names[output].decode()

    def _restore_of(self, use: Use) -> tuple[NodeDef, int] | None:
        """Return the node, and its output, that a new value is restored by."""
        if use.node.op not in ASSIGNMENTS:
            return None
        nodes = self._nodes[use.function]
        name, output = split_input(use.node.input[1])
        while nodes[name].op == "Identity":
            name, output = split_input(nodes[name].input[0])
        return (nodes[name], output) if nodes[name].op == _RESTORE else None

    def _strings(self, function: str, tensor: str) -> list[bytes]:
        name, _ = split_input(tensor)
        node = self._nodes[function][name]
        if node.op != "Const":
            return []
        return list(tensor_util.MakeNdarray(node.attr["value"].tensor).reshape(-1))

    @cached_attribute
    def _nodes(self) -> dict[str, dict[str, NodeDef]]:
        bodies = self.bodies.items()
        return {name: {n.name: n for n in body.node} for name, body in bodies}

    def _is_matrix(self, key: str) -> bool:
        shape = self.file.shapes.get(key, ())
        return self.file.dtypes.get(key) == "float32" and len(shape) >= _LEAST_RANK

    def _why_not(self, group: Group) -> str:
        if not group.keys or not all(map(self._is_matrix, group.keys)):
            return "not a float32 matrix in the file of variables"
        reasons = (reason for use in group.uses if (reason := self._why_not_use(use)))
        found = next(reasons, "") or self._why_not_objects(group)
        if found or self.dtype != np.float16:
            return found
        if not all(map(self._fits, group.keys)):
            return "it holds values that float16 cannot hold"
        return ""

    def _why_not_use(self, use: Use) -> str:
        name, op = use.node.name, use.node.op
        where = f"{name} ({op}) in {use.function or 'the graph'}"
        if op in _HARMLESS:
            return ""
        if op in READ_OPS or _reads_reference(use):
            pattern = self.excluded_by(name)
            return f"{name} is excluded by {pattern!r}" if pattern else ""
        if op not in ASSIGNMENTS:
            return f"it is used by {where}"
        is_initial = use.function == MAIN and name not in self._run_nodes
        if is_initial or self._restore_of(use) is not None:
            return ""
        return f"it is updated by {where}"

    def _why_not_objects(self, group: Group) -> str:
        assert self.objects is not None or not group.objects
        if self.objects is None:
            return ""
        tied = {
            number
            for node in self.objects.nodes
            for slot in node.slot_variables
            for number in (slot.original_variable_node_id, slot.slot_variable_node_id)
        }
        return "an optimizer's slots follow its type" if tied & group.objects else ""

    def _fits(self, key: str) -> bool:
        value = self.file.value(key)
        with np.errstate(over="ignore"):
            return bool(np.isfinite(value.astype(self.dtype)).all())

    @cached_attribute
    def _run_nodes(self) -> frozenset[str]:
        """Name the nodes of the graph itself that run for what is fetched."""
        nodes = self._nodes[MAIN]
        fetched = (name for name in self.fetched if name in nodes)
        return frozenset(reached(fetched, lambda name: map(name_in, nodes[name].input)))


def _reads_reference(use: Use) -> bool:
    """Return whether a node takes the value of a variable of TensorFlow 1."""
    op_def = op_def_of(use.node.op)
    if op_def is None or use.function != MAIN or use.node.op in ASSIGNMENTS:
        return False
    types = {arg.type for arg in op_def.input_arg}
    return not any(arg.is_ref for arg in op_def.input_arg) and (
        types_pb2.DT_RESOURCE not in types
    )


def _bound_places(
    handles: Handles, objects: SavedObjectGraph | None
) -> dict[int, list[Place]]:
    """Follow the variables that functions of a model's objects are bound to."""
    found: dict[int, list[Place]] = defaultdict(list)
    if objects is None:
        return found
    for name, function in objects.concrete_functions.items():
        arguments = handles.arguments(name)
        bound = arguments[len(arguments) - len(function.bound_inputs) :]
        for place, number in zip(bound, function.bound_inputs, strict=True):
            if objects.nodes[number].WhichOneof("kind") == "variable":
                handles.follow(place)
                found[number].append(place)
    return found
