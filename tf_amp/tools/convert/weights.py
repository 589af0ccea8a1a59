"""Choose which variables of a stored model can be kept in 16 bits.

Those that are matrices or larger, and are only read: a variable that a function updates
would lose small updates. Vectors and scalars (biases, statistics) weigh nothing and
stay. What cannot go says why. A variable is a node of the graph, an object of the
model, or both, and a tensor in its file; functions get its handle as an argument. What
may share a handle is one group.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.saved_object_graph_pb2 import SavedObjectGraph
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.eligibility.regions import connected
from grappler_pass.functions import conversion
from grappler_pass.graph.editing import Graph, name_in
from grappler_pass.graph.op_table import (
    CALL_OPS,
    FORWARDING_OPS,
    LOOK_OPS,
    MERGE_OPS,
    READ_OPS,
    SWITCH_OPS,
    VARIABLE_OPS,
    WHILE_OPS,
)
from grappler_pass.graph.type_slots import op_def_of
from grappler_pass.graph.view import split_input
from grappler_pass.graph.walks import reached
from tf_amp.errors import ConversionError
from tf_amp.tools.convert.files import VARIABLES, unreadable

# The graph itself among its functions, as in `bodies_of`.
MAIN = ""
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"
# What TensorFlow raises, depending on where a file ends.
_UNREADABLE = (tf.errors.OpError, IndexError, RuntimeError, ValueError)


@dataclasses.dataclass(frozen=True)
class VariablesFile:
    """A reader of tensors by key, with what is known without reading them.

    The path is the prefix of the files' names; dtypes are names such as "float32".
    """

    path: pathlib.Path
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    _reader: Any

    @classmethod
    def of(cls, folder: pathlib.Path) -> VariablesFile | None:
        """Open the variables of a SavedModel; None where it has none."""
        path = folder / VARIABLES
        if not path.with_name(f"{path.name}.index").is_file():
            return None
        with unreadable(f"{path} is damaged or cut off", *_UNREADABLE):
            reader = tf.train.load_checkpoint(str(path))
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
        return cls(
            path,
            {key: str(dtype.name) for key, dtype in dtypes.items()},
            {key: tuple(shape) for key, shape in shapes.items()},
            reader,
        )

    def value(self, key: str) -> Any:
        """Return a tensor as a NumPy array; UnreadableModelError if it is damaged."""
        what = f"{self.path} is damaged or cut off: {key}"
        with unreadable(what, *_UNREADABLE):
            return self._reader.get_tensor(key)

    def check(self) -> None:
        """Read everything once, one tensor after another."""
        for key in self.dtypes:
            self.value(key)

    def keys_of_objects(self, objects: SavedObjectGraph) -> dict[int, str]:
        """Return by number of an object the key of its value, for variables."""
        if _OBJECTS not in self.dtypes:
            return {}
        saved = TrackableObjectGraph.FromString(self.value(_OBJECTS))

        def children_of(pair: tuple[int, int]) -> Iterator[tuple[int, int]]:
            own, other = pair
            below = {c.local_name: c.node_id for c in saved.nodes[other].children}
            for child in objects.nodes[own].children:
                if child.local_name in below:
                    yield child.node_id, below[child.local_name]

        return {
            own: str(attribute.checkpoint_key)
            for own, other in reached([(0, 0)], children_of, key=lambda pair: pair[0])
            for attribute in saved.nodes[other].attributes
            if attribute.name == _VALUE
        }

    def write(
        self, path: pathlib.Path, retyped: Collection[str], dtype: np.dtype[Any]
    ) -> None:
        """Write all tensors, some in another type, to files of another prefix."""
        path.parent.mkdir(parents=True, exist_ok=True)
        keys = sorted(self.dtypes)
        tensors = []
        with tf.device("/device:CPU:0"):
            for key in keys:
                value = self.value(key)
                if key in retyped:
                    value = value.astype(dtype)
                tensors.append(tf.constant(value))
            try:
                _save(str(path), keys, tensors)
            except tf.errors.OpError as error:
                raise ConversionError(
                    f"{path} cannot be written: {error.message}; nothing of it was "
                    "kept."
                ) from error


def _save(path: str, keys: list[str], tensors: list[Any]) -> None:
    part = f"{path}_part"
    tf.raw_ops.SaveV2(
        prefix=part,
        tensor_names=keys,
        shape_and_slices=[""] * len(keys),
        tensors=tensors,
    )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[part], destination_prefix=path, delete_old_dirs=False
    )


_PASSING = (FORWARDING_OPS - SWITCH_OPS) | MERGE_OPS


class Place(NamedTuple):
    """A tensor of a function, or of the graph itself (`MAIN`)."""

    function: str
    tensor: str


class Use(NamedTuple):
    """A data input that takes a handle."""

    function: str
    node: NodeDef
    input: int


@dataclasses.dataclass
class Group:
    """Variables whose handles meet, where they go, and what uses them."""

    places: list[Place] = dataclasses.field(default_factory=list)
    uses: list[Use] = dataclasses.field(default_factory=list)
    objects: set[int] = dataclasses.field(default_factory=set)
    keys: set[str] = dataclasses.field(default_factory=set)


class Handles:
    """Groups of variables of a graph, found by following their handles."""

    def __init__(self, bodies: Mapping[str, Graph]) -> None:
        """Index the graph itself, under `MAIN`, and its functions as graphs.

        A function that cannot be taken for a graph is missing; what it does with a
        handle is not known.
        """
        self._library = conversion.library_of(bodies[MAIN])
        self._bodies = bodies
        self._uses: dict[Place, list[Use]] = {}
        self._meeting: list[tuple[Place, Place]] = []

    def follow(self, place: Place) -> None:
        """Follow the handle at `place` to all that takes it."""
        waiting = [place]
        while waiting:
            here = waiting.pop()
            if here in self._uses:
                continue
            self._uses[here] = []
            for use in self._uses_of(here):
                onward = tuple(self._onward(use))
                waiting.extend(onward)
                self._meeting.extend((here, there) for there in onward)
                if not onward:
                    self._uses[here].append(use)

    def join(self, places: Sequence[Place]) -> None:
        """Make one group of those of several places that were followed."""
        self._meeting.extend(itertools.pairwise(places))

    def groups(self) -> tuple[Group, ...]:
        """Return all groups found so far, of which nothing but handles is known."""
        places = tuple(self._uses)
        numbers = {place: number for number, place in enumerate(places)}
        alone = ((number, number) for number in numbers.values())
        meeting = ((numbers[first], numbers[second]) for first, second in self._meeting)
        return tuple(
            Group(
                places=[places[n] for n in members],
                uses=[use for n in members for use in self._uses[places[n]]],
            )
            for members in connected(itertools.chain(alone, meeting))
        )

    def arguments(self, function: str) -> tuple[Place, ...]:
        """Return the places of the arguments of a function."""
        arguments = self._library[function].signature.input_arg
        return tuple(Place(function, str(arg.name)) for arg in arguments)

    def _uses_of(self, place: Place) -> Iterator[Use]:
        if place.function not in self._bodies:
            yield Use(place.function, NodeDef(name=place.function, op="function"), 0)
            return
        for reader in self._bodies[place.function].readers(place.tensor):
            yield Use(place.function, *reader)

    def _onward(self, use: Use) -> Iterator[Place]:
        """Yield where a handle goes on to from a node that only hands it on."""
        node = use.node
        if node.op in _PASSING and _hands_on(node):
            yield Place(use.function, node.name)
        elif node.op == "Switch" and use.input == 0 and _hands_on(node):
            yield Place(use.function, node.name)
            yield Place(use.function, f"{node.name}:1")
        elif node.op in CALL_OPS or node.op in self._library:
            position = use.input - CALL_OPS.get(node.op, 0)
            if position >= 0:
                for called in conversion.called_by(node, self._library):
                    yield self.arguments(called)[position]
            if node.op in WHILE_OPS:
                yield Place(use.function, _tensor(node.name, use.input))


def _hands_on(node: NodeDef) -> bool:
    """Return whether a node hands a handle on, and not the value of a v1 variable."""
    return bool(node.attr["T"].type == types_pb2.DT_RESOURCE)


def _tensor(name: str, output: int) -> str:
    return f"{name}:{output}" if output else name


_HARMLESS = LOOK_OPS | {"DestroyResourceOp", "DisableCopyOnRead", "NoOp"}
ASSIGNMENTS = frozenset({"Assign", "AssignVariableOp"})
_RESTORE = "RestoreV2"
LEAST_RANK = 2


@dataclasses.dataclass(frozen=True)
class Chooser:
    """What a choice is made from.

    Bodies are the graph, under `MAIN`, and its functions as graphs; objects those of
    the model, if it has any; `file` is of its variables. Fetched are names of nodes of
    the graph itself that are run for their values; `excluded_by` returns by the name of
    a node what keeps it in float32, or nothing.
    """

    bodies: Mapping[str, Graph]
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
        for node in self.bodies[MAIN].nodes.values():
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
        nodes = self.bodies[use.function].nodes
        name, output = split_input(use.node.input[1])
        while nodes[name].op == "Identity":
            name, output = split_input(nodes[name].input[0])
        return (nodes[name], output) if nodes[name].op == _RESTORE else None

    def _strings(self, function: str, tensor: str) -> list[bytes]:
        name, _ = split_input(tensor)
        node = self.bodies[function].nodes[name]
        if node.op != "Const":
            return []
        return list(tf.make_ndarray(node.attr["value"].tensor).reshape(-1))

    def _is_matrix(self, key: str) -> bool:
        shape = self.file.shapes.get(key, ())
        return self.file.dtypes.get(key) == "float32" and len(shape) >= LEAST_RANK

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
        nodes = self.bodies[MAIN].nodes
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
