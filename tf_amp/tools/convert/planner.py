"""Send a stored graph and every function of its library through the pass.

Each function is taken by itself and keeps its types where it is called, so whoever
calls it, from this model or another, finds what he knows.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Mapping

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass import pipeline
from grappler_pass.functions import conversion
from grappler_pass.functions.conversion import Known, Library
from grappler_pass.graph.op_table import ALLOW
from grappler_pass.graph.op_traits import is_update
from grappler_pass.graph.shapes import (
    Shape,
    Shapes,
    shape_from_proto,
    shapes_from_graph_def,
)
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.draft import Settings
from grappler_pass.planning.plan import Plan
from tf_amp.errors import AmpError, StageError
from tf_amp.run import progress
from tf_amp.run.batches import set_batch
from tf_amp.run.stand_ins import HANDLES
from tf_amp.tracing import grappler_preview

# The graph itself among its functions, as in `bodies_of`.
MAIN = ""
SHAPES = "_output_shapes"
# What tf.data calls the functions it traces.
_DATASET_FUNCTIONS = ("__inference_Dataset_", "__inference_tf_data_")


@dataclasses.dataclass(frozen=True)
class Planner:
    """What graphs are rewritten with.

    The device is the one that they will run on, which bears on plans alone. `batch`
    stands for an unknown first dimension when prices are looked up; None: the pass's
    own guess.
    """

    settings: Settings
    device_type: str = "CPU"
    batch: int | None = None

    @property
    def device_profile(self) -> str:
        """The name of the device's profile."""
        return self.settings.models[self.device_type].profile.name


class LeftAloneError(AmpError):
    """A function keeps every type; the message says why."""


def rewrite(
    graph_def: GraphDef, item: Item, planner: Planner
) -> tuple[GraphDef, dict[str, Plan], dict[str, str]]:
    """Rewrite a graph, on which callers rely as `item` says, and its functions.

    Returns:
      A new graph; plans of the graph (`MAIN`) and of functions by name, where there is
      a product; and functions with a product that keep every type, by name, and why.
    """
    changed = copy.deepcopy(graph_def)
    library = conversion.library_of(graph_def)
    plans: dict[str, Plan] = {}
    left_alone: dict[str, str] = {}
    # Those that hold an op which low precision starts at.
    names = tuple(
        name
        for name, nodes in conversion.bodies_of(graph_def).items()
        if any(planner.settings.lists.list_of(node.op) == ALLOW for node in nodes)
    )
    for name in progress.each(names, "planning functions"):
        try:
            outcome = _outcome(name, graph_def, item, library, planner)
        except (LeftAloneError, conversion.FunctionError, StageError) as error:
            left_alone[name] = str(error)
            continue
        if outcome.plan is not None:
            plans[name] = outcome.plan
        if outcome.changed:
            _put(outcome.graph_def, name, changed, library)
    return changed, plans, left_alone


def _outcome(
    name: str, graph_def: GraphDef, item: Item, library: Library, planner: Planner
) -> Rewrite:
    """Return what the pass makes of one function, or of the graph.

    Raises:
      LeftAloneError, FunctionError, StageError: it stays as it is, and why.
    """
    if name != MAIN:
        _check(library[name], library, planner.settings.low_dtype)
        function = library[name]
        known = known_arguments(function)
        graph_def, item = conversion.graph_from_function(function, library, known)
    shapes = functools.cache(functools.partial(stored_shapes, graph_def, planner.batch))
    outcome = pipeline.optimize(
        grappler_preview.without_devices(graph_def),
        item,
        planner.settings,
        shapes=shapes,
        name=name,
    )
    devices = {node.name: node.device for node in graph_def.node}
    for node in outcome.graph_def.node:
        node.device = devices.get(node.name, "")
    return outcome


def _check(function: FunctionDef, library: Library, low_dtype: str) -> None:
    if str(function.signature.name).startswith(_DATASET_FUNCTIONS):
        raise LeftAloneError("it belongs to a tf.data pipeline")
    if low_dtype != "float16":
        return
    called = conversion.reachable_from(function.node_def, library)
    bodies = (function, *(library[name] for name in called))
    nodes = (node for body in bodies for node in body.node_def)
    # More than a new value.
    if any(is_update(node.op) and node.op != "AssignVariableOp" for node in nodes):
        raise LeftAloneError(
            "it updates variables, and stored gradients are not scaled for float16"
        )


def _put(
    changed: GraphDef, name: str, into: GraphDef, library: Mapping[str, FunctionDef]
) -> None:
    """Put a rewritten body, in place, into the graph that it belongs to."""
    if name == MAIN:
        del into.node[:]
        into.node.extend(changed.node)
        return
    made = conversion.function_from_graph(changed, library[name])
    for function in into.library.function:
        if function.signature.name == name:
            function.CopyFrom(made)


def stored_shapes(graph_def: GraphDef, batch: int | None = None) -> Shapes:
    """Return the shapes of every node's outputs, as far as they are known.

    Of a graph as stored, or made of a stored function; `batch` stands for an unknown
    first dimension, None leaves it unknown.
    """
    shapes = {node.name: _written(node) for node in graph_def.node if _has_shapes(node)}
    if batch is None:
        # Of these a price hangs on it; a result is an Identity without attributes.
        priced = (n for n in graph_def.node if n.op not in HANDLES and len(n.attr) > 1)
        if any(node.name not in shapes for node in priced):
            shapes = _imported(graph_def) or shapes
        return shapes
    # What follows from a size of the arguments, as the rows of a product of several
    # axes, is inferred.
    sized = copy.deepcopy(graph_def)
    for node in sized.node:
        node.attr.pop(SHAPES, None)
    set_batch(sized, batch)
    inferred = _imported(sized)
    return {
        name: tuple(
            _known(found, shape, batch)
            for shape, found in itertools.zip_longest(outputs, inferred.get(name, ()))
        )
        for name, outputs in {**inferred, **shapes}.items()
    }


def known_arguments(function: FunctionDef) -> tuple[Known, ...]:
    """Return what the reads of variables in a function show of its handles."""
    contents: dict[str, tuple[int, Shape | None]] = {}
    for node in function.node_def:
        if node.op == "ReadVariableOp" and _has_shapes(node):
            (shape,) = _written(node) or (None,)
            contents[node.input[0]] = (int(node.attr["dtype"].type), shape)
    arguments = (str(arg.name) for arg in function.signature.input_arg)
    return tuple(
        Known(contents=(contents[name],)) if name in contents else Known()
        for name in arguments
    )


def _has_shapes(node: NodeDef) -> bool:
    # `in` first: reading a missing key of a protobuf map creates it.
    return SHAPES in node.attr


def _written(node: NodeDef) -> tuple[Shape | None, ...]:
    return tuple(shape_from_proto(s) for s in node.attr[SHAPES].list.shape)


def _imported(graph_def: GraphDef) -> dict[str, tuple[Shape | None, ...]]:
    """Return what TensorFlow infers; nothing where it cannot import the graph."""
    try:
        return dict(shapes_from_graph_def(graph_def))
    except Exception:
        # An unknown op, or a version of one: prices are then guesses.
        return {}


def _known(found: Shape | None, otherwise: Shape | None, batch: int) -> Shape | None:
    """Return what was found if all of it is known, else the other one with a batch."""
    if found is not None and None not in found:
        return found
    if not otherwise or otherwise[0] is not None:
        return otherwise
    return (batch, *otherwise[1:])
