"""Store a graph's weights in 16 bits, before the pass is asked what they save."""

from __future__ import annotations

from collections.abc import Mapping

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

from grappler_pass.eligibility.exclusions import finder
from grappler_pass.eligibility.existing_casts import NUMPY_DTYPES
from grappler_pass.functions import conversion
from grappler_pass.graph.type_slots import DTYPE_ENUMS
from grappler_pass.graph.view import Item
from tf_amp.tools.convert.files.variables_file import VariablesFile
from tf_amp.tools.convert.planner import MAIN, Planner
from tf_amp.tools.convert.report import Storage
from tf_amp.tools.convert.weights.low_storage import Chooser, LowStorage
from tf_amp.tools.convert.weights.retyping import retype_constants, retype_variables


def store_low(
    meta_graph: MetaGraphDef,
    item: Item,
    planner: Planner,
    file: VariablesFile | None,
) -> Storage:
    """Store variables and constants of a graph in 16 bits, in place.

    What callers rely on in it stays; there is no file for a graph without variables.
    """
    low_dtype = DTYPE_ENUMS[planner.settings.low_dtype]
    bodies = _bodies(meta_graph.graph_def)
    excluded_by = finder(planner.settings.exclude)
    chosen = LowStorage()
    if file is not None:
        has_objects = meta_graph.HasField("object_graph_def")
        objects = meta_graph.object_graph_def if has_objects else None
        dtype = NUMPY_DTYPES[low_dtype]
        chooser = Chooser(bodies, objects, file, item.fetch, excluded_by, dtype)
        chosen = chooser.choose()
    captured = _captured_constants(meta_graph) | item.untouchable

    def is_kept(name: str) -> object:
        return name in captured or excluded_by(name)

    constants: list[str] = []
    for name, body in bodies.items():
        own = [place.tensor for place in chosen.places if place.function == name]
        uses = [use for use in chosen.uses if use.function == name]
        retype_variables(body, own, uses, low_dtype)
        constants += retype_constants(body, low_dtype, is_kept)
    _put_back(bodies, meta_graph.graph_def)
    for number in chosen.objects:
        meta_graph.object_graph_def.nodes[number].variable.dtype = low_dtype
    return Storage(tuple(sorted(chosen.keys)), tuple(constants), chosen.kept)


def _bodies(graph_def: GraphDef) -> dict[str, GraphDef]:
    """Return the graph itself and its functions as graphs, as far as they can be."""
    bodies = {MAIN: graph_def}
    library = conversion.library_of(graph_def)
    for name, function in library.items():
        try:
            body, _ = conversion.graph_from_function(function, library)
        except conversion.FunctionError:
            continue
        body.ClearField("library")
        bodies[name] = body
    return bodies


def _put_back(bodies: Mapping[str, GraphDef], graph_def: GraphDef) -> None:
    library = conversion.library_of(graph_def)
    for function in graph_def.library.function:
        body = bodies.get(function.signature.name)
        if body is None:
            continue
        called = {node.op for node in body.node}.intersection(library)
        body.library.function.extend(library[name] for name in called)
        function.CopyFrom(conversion.function_from_graph(body, function))


def _captured_constants(meta_graph: MetaGraphDef) -> frozenset[str]:
    """Name the constants that functions get as arguments when they are loaded."""
    nodes = meta_graph.object_graph_def.nodes
    kinds = (node for node in nodes if node.WhichOneof("kind") == "constant")
    return frozenset(str(node.constant.operation) for node in kinds)
