"""Choose which variables of a stored model can be kept in 16 bits.

Those that are matrices or larger, and are only read: a variable that a function updates
would lose small updates. Vectors and scalars (biases, statistics) weigh nothing and
stay. What cannot go says why. A variable is a node of the graph, an object of the
model, or both, and a tensor in its file; functions get its handle as an argument. What
may share a handle, an object or a tensor in the file is one group.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.saved_object_graph_pb2 import SavedObjectGraph
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from grappler_pass.eligibility.regions import connected
from grappler_pass.functions import conversion
from grappler_pass.graph import op_table
from grappler_pass.graph.editing import name_in, split_input
from grappler_pass.graph.type_slots import op_def_of
from grappler_pass.graph.view import Graph
from grappler_pass.graph.walks import reached
from tf_amp.errors import ConversionError
from tf_amp.tools.convert.files import VARIABLES, unreadable

# The graph itself among its functions, as in `nodes_by_function`.
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
        if _OBJECTS not in self.dtypes or not objects.nodes:
            return {}
        saved = TrackableObjectGraph.FromString(self.value(_OBJECTS))

        def children_of(pair: tuple[int, int]) -> Iterator[tuple[int, int]]:
            number, other = pair
            below = {c.local_name: c.node_id for c in saved.nodes[other].children}
            for child in objects.nodes[number].children:
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
        with tf.device("/device:CPU:0"):
            values = ((key, self.value(key)) for key in keys)
            tensors = [
                tf.constant(value.astype(dtype) if key in retyped else value)
                for key, value in values
            ]
            part = f"{path}_part"
            try:
                tf.raw_ops.SaveV2(
                    prefix=part,
                    tensor_names=keys,
                    shape_and_slices=[""] * len(keys),
                    tensors=tensors,
                )
                tf.raw_ops.MergeV2Checkpoints(
                    checkpoint_prefixes=[part],
                    destination_prefix=str(path),
                    delete_old_dirs=False,
                )
            except tf.errors.OpError as error:
                raise ConversionError(
                    f"{path} cannot be written: {error.message}; nothing of it was "
                    "kept."
                ) from error


_PASSING = (op_table.FORWARDING_OPS - op_table.SWITCH_OPS) | op_table.MERGE_OPS


class Place(NamedTuple):
    """A tensor of a function, or of the graph itself (`MAIN`)."""

    function: str
    tensor: str


class Use(NamedTuple):
    """A data input that takes a handle."""

    function: str
    node: NodeDef
    input: int


@dataclasses.dataclass(frozen=True)
class VariableGroup:
    """Variables that may be one: where their handles go, and what uses them.

    Objects are by their numbers, keys are those of the file.
    """

    places: tuple[Place, ...]
    uses: tuple[Use, ...]
    objects: frozenset[int]
    keys: frozenset[str]


_HARMLESS = op_table.LOOK_OPS | {"DestroyResourceOp", "DisableCopyOnRead", "NoOp"}
ASSIGNMENTS = frozenset({"Assign", "AssignVariableOp"})
_RESTORE = "RestoreV2"
LEAST_RANK = 2


class Chooser:
    """Groups variables by their handles, and says which can be stored in 16 bits."""

    def __init__(
        self,
        bodies: Mapping[str, Graph],
        objects: SavedObjectGraph,
        file: VariablesFile,
        fetched: Sequence[str],
        excluded_by: Callable[[str], str],
        dtype: np.dtype[Any],
    ) -> None:
        """Take what a choice is made from.

        Args:
          bodies: the graph, under `MAIN`, and its functions as graphs. A function that
            cannot be taken for a graph is missing; what it does with a handle is not
            known.
          objects: those of the model; it may have none.
          file: of the variables.
          fetched: nodes of the graph itself that are run for their values.
          excluded_by: returns by the name of a node what keeps it in float32, or
            nothing.
          dtype: the 16-bit type.
        """
        self._bodies, self._objects, self._file = bodies, objects, file
        self._excluded_by, self._dtype = excluded_by, dtype
        self._library = conversion.library_of(bodies[MAIN])
        main = bodies[MAIN]
        present = (name for name in fetched if name in main.index)
        # Of the graph itself, what runs for what is fetched.
        self._run_nodes = frozenset(
            reached(present, lambda name: map(name_in, main.proto(name).input))
        )

    def choose(self) -> tuple[list[VariableGroup], dict[str, str]]:
        """Return what can go to 16 bits; and by key the matrices that stay, and why."""
        chosen: list[VariableGroup] = []
        kept: dict[str, str] = {}
        for group in self._groups():
            if reason := self._why_not(group):
                matrices = filter(self._is_matrix, sorted(group.keys))
                kept |= dict.fromkeys(matrices, reason)
            else:
                chosen.append(group)
        return chosen, kept

    def _groups(self) -> Iterator[VariableGroup]:
        """Follow every variable, and yield what is connected.

        Connected are handles that meet, objects that functions are bound to, and the
        keys of both in the file.
        """
        variables = [*self._variables()]
        # Handles by place, objects by number, and keys.
        pairs: list[tuple[Place | int | str, Place | int | str]] = [
            (place, number) for place, number in variables if number is not None
        ]
        pairs += self._file.keys_of_objects(self._objects).items()
        uses: dict[Place, list[Use]] = {}

        def onward(place: Place) -> list[Place]:
            """Note what uses the handle at a place, and return where it goes on to."""
            uses[place] = []
            there: list[Place] = []
            for use in self._readers(place):
                passed = [*self._onward(use)]
                there += passed
                if not passed:
                    uses[place].append(use)
                    pairs.extend((place, key) for key in self._restored_keys(use))
            pairs.extend((place, other) for other in there)
            return there

        places = tuple(reached((place for place, _ in variables), onward))
        vertices = tuple(
            dict.fromkeys([*places, *itertools.chain.from_iterable(pairs)])
        )
        numbers = {each: number for number, each in enumerate(vertices)}
        pairs += zip(places, places, strict=True)
        for members in connected((numbers[a], numbers[b]) for a, b in pairs):
            group = [vertices[number] for number in members]
            handles = tuple(each for each in group if isinstance(each, Place))
            if handles:
                yield VariableGroup(
                    handles,
                    tuple(use for place in handles for use in uses[place]),
                    frozenset(each for each in group if isinstance(each, int)),
                    frozenset(each for each in group if isinstance(each, str)),
                )

    def _variables(self) -> Iterator[tuple[Place, int | None]]:
        """Yield the handles of variables, with the numbers of objects that have one."""
        for node in self._bodies[MAIN].nodes:
            if node.op in op_table.VARIABLE_OPS:
                yield Place(MAIN, node.name), None
        for name, function in self._objects.concrete_functions.items():
            bound = function.bound_inputs
            arguments = self._arguments(name)
            last = arguments[len(arguments) - len(bound) :]
            for place, number in zip(last, bound, strict=True):
                if self._objects.nodes[number].WhichOneof("kind") == "variable":
                    yield place, number

    def _readers(self, place: Place) -> Iterator[Use]:
        """Yield what takes the handle at a place."""
        if place.function not in self._bodies:
            yield Use(place.function, NodeDef(name=place.function, op="function"), 0)
            return
        body = self._bodies[place.function]
        for reader in body.readers(body.port(place.tensor)):
            yield Use(place.function, body.nodes[reader.node].proto, reader.input)

    def _onward(self, use: Use) -> Iterator[Place]:
        """Yield where a handle goes on to from a node that only passes it."""
        node = use.node
        is_switch = node.op == "Switch" and use.input == 0
        if node.op in _PASSING or is_switch:
            # Not where it is the value of a variable of TensorFlow 1.
            if node.attr["T"].type == types_pb2.DT_RESOURCE:
                yield Place(use.function, node.name)
                if is_switch:
                    yield Place(use.function, f"{node.name}:1")
        elif node.op in op_table.CALL_OPS or node.op in self._library:
            position = use.input - op_table.CALL_OPS.get(node.op, 0)
            if position >= 0:
                for called in conversion.called_by(node, self._library):
                    yield self._arguments(called)[position]
            if node.op in op_table.WHILE_OPS:
                output = f"{node.name}:{use.input}" if use.input else node.name
                yield Place(use.function, output)

    def _arguments(self, function: str) -> tuple[Place, ...]:
        """Return the places of the arguments of a function."""
        arguments = self._library[function].signature.input_arg
        return tuple(Place(function, str(arg.name)) for arg in arguments)

    def _restored_keys(self, use: Use) -> Iterator[str]:
        """Yield the key of the file that a use restores, if it does."""
        restore, output = self._restore_of(use)
        if restore is None:
            return
        body = self._bodies[use.function]
        constants = [body.proto(name_in(text)) for text in restore.input[1:3]]
        if all(node.op == "Const" for node in constants):
            names, slices = (
                tf.make_ndarray(node.attr["value"].tensor).ravel() for node in constants
            )
            if not slices[output]:
                yield names[output].decode()

    def _restore_of(self, use: Use) -> tuple[NodeDef | None, int]:
        """Return the node, and its output, that a new value is restored by, if any."""
        if use.node.op not in ASSIGNMENTS:
            return None, 0
        body = self._bodies[use.function]
        name, output = split_input(use.node.input[1])
        while (node := body.proto(name)).op == "Identity":
            name, output = split_input(node.input[0])
        return (node if node.op == _RESTORE else None), output

    def _is_matrix(self, key: str) -> bool:
        shape = self._file.shapes.get(key, ())
        return self._file.dtypes.get(key) == "float32" and len(shape) >= LEAST_RANK

    def _why_not(self, group: VariableGroup) -> str:
        if not group.keys or not all(map(self._is_matrix, group.keys)):
            return "not a float32 matrix in the file of variables"
        reasons = (reason for use in group.uses if (reason := self._why_not_use(use)))
        if found := next(reasons, ""):
            return found
        tied = {
            number
            for node in self._objects.nodes
            for slot in node.slot_variables
            for number in (slot.original_variable_node_id, slot.slot_variable_node_id)
        }
        if tied & group.objects:
            return "an optimizer's slots follow its type"
        # What bfloat16 cannot hold, float32 hardly can.
        values = map(self._file.value, group.keys if self._dtype == np.float16 else ())
        with np.errstate(over="ignore"):
            if all(np.isfinite(value.astype(self._dtype)).all() for value in values):
                return ""
        return "it holds values that float16 cannot hold"

    def _why_not_use(self, use: Use) -> str:
        name, op = use.node.name, use.node.op
        where = f"{name} ({op}) in {use.function or 'the graph'}"
        if op in _HARMLESS:
            return ""
        # What takes the value of a variable of TensorFlow 1 reads it, too.
        op_def = (
            op_def_of(op) if use.function == MAIN and op not in ASSIGNMENTS else None
        )
        arguments = op_def.input_arg if op_def else ()
        takes_handle = any(
            arg.is_ref or arg.type == types_pb2.DT_RESOURCE for arg in arguments
        )
        if op in op_table.READ_OPS or (op_def is not None and not takes_handle):
            pattern = self._excluded_by(name)
            return f"{name} is excluded by {pattern!r}" if pattern else ""
        if op not in ASSIGNMENTS:
            return f"it is used by {where}"
        is_initial = use.function == MAIN and name not in self._run_nodes
        if is_initial or self._restore_of(use)[0] is not None:
            return ""
        return f"it is updated by {where}"
