"""Send a stored graph and every function of its library through the pass.

Each function is taken by itself and keeps its types where it is called, so whoever
calls it, from this model or another, finds what he knows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.functions import conversion
from grappler_pass.functions.conversion import Library
from grappler_pass.graph.op_table import ALLOW
from grappler_pass.graph.op_traits import is_update
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.draft import Settings
from grappler_pass.planning.plan import Plan
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import AmpError
from tf_amp.measuring import process_costs
from tf_amp.measuring.fingerprint import digest_of_seeds
from tf_amp.tools import progress
from tf_amp.tools.convert.files.stored_shapes import known_arguments, stored_shapes
from tf_amp.tracing import grappler_preview

# The graph itself among its functions, as in `bodies_of`.
MAIN = ""
# What tf.data calls the functions it traces.
_DATASET_FUNCTIONS = ("__inference_Dataset_", "__inference_tf_data_")


@dataclasses.dataclass(frozen=True)
class Planner:
    """What graphs are rewritten with.

    Attributes:
      settings: of the pass.
      device_type: of the device that they will run on; bears on plans alone.
      batch: what stands for an unknown first dimension when prices are looked up;
        None: the pass's own guess.
      config: says how much is measured; None: nothing, for a device that is absent.
    """

    settings: Settings
    device_type: str = "CPU"
    batch: int | None = None
    config: AmpConfig | None = None

    @property
    def device(self) -> str:
        """The name of the device's profile."""
        return self.settings.models[self.device_type].profile.name

    def settings_for(
        self, graph_def: GraphDef, shapes: Callable[[], Shapes]
    ) -> Settings:
        """Return the settings of a graph, which has its own time to be measured."""
        if self.config is None:
            return self.settings

        def graph() -> Hashable:
            return self.settings.low_dtype, digest_of_seeds(graph_def, shapes())

        tuner = process_costs.tuner_for(self.config, self.device_type, graph)
        return dataclasses.replace(self.settings, tuner=tuner)


class Rewritten(NamedTuple):
    """A graph with its library, rewritten.

    Attributes:
      graph_def: a new graph.
      plans: of the graph (`MAIN`) and of functions by name, where there is a product.
      left_alone: functions with a product that keep every type, by name, and why.
    """

    graph_def: GraphDef
    plans: Mapping[str, Plan]
    left_alone: Mapping[str, str]


class LeftAloneError(AmpError):
    """A function keeps every type; the message says why."""


def rewrite(graph_def: GraphDef, item: Item, planner: Planner) -> Rewritten:
    """Rewrite a graph, on which callers rely as `item` says, and its functions."""
    changed = type(graph_def)()
    changed.CopyFrom(graph_def)
    library = conversion.library_of(graph_def)
    plans: dict[str, Plan] = {}
    left_alone: dict[str, str] = {}
    names = _with_products(graph_def, planner.settings)
    for name in progress.each(names, "planning functions"):
        try:
            outcome = _outcome(name, graph_def, item, library, planner)
        except (LeftAloneError, conversion.FunctionError, pipeline.StageError) as error:
            left_alone[name] = str(error)
            continue
        if outcome.plan is not None:
            plans[name] = outcome.plan
        if outcome.changed:
            _put(outcome.graph_def, name, changed, library)
    return Rewritten(changed, plans, left_alone)


def _with_products(graph_def: GraphDef, settings: Settings) -> tuple[str, ...]:
    """Name the functions, and `MAIN`, that hold an op which low precision starts at."""
    lists = settings.lists
    return tuple(
        name
        for name, nodes in conversion.bodies_of(graph_def).items()
        if any(lists.list_of(node.op) == ALLOW for node in nodes)
    )


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
        grappler_preview.on_device(graph_def, planner.device_type),
        item,
        planner.settings_for(graph_def, shapes),
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
