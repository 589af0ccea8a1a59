"""The graph of a function as Grappler would pass it, without running it.

Inlining, lowering of control flow, folding and fusing are done by Grappler itself, on a
copy; the names that differ are those of arguments and results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from absl import logging

from grappler_pass.graph.op_table import CALL_OPS, PLAIN_CALL_OPS
from grappler_pass.graph.walks import reached
from tf_amp._tensorflow_private import graphs as private
from tf_amp._tensorflow_private import tracing, warn_once
from tf_amp._tensorflow_private.functions import COMPILED, NOT_INLINED
from tf_amp.config import devices
from tf_amp.tracing import stack

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef


# Loops and branches, and what has TensorFlow split them.
CONTROL_FLOW = CALL_OPS.keys() - PLAIN_CALL_OPS
LOWER = "_lower_using_switch_merge"
# In the name that Grappler gives to a function for one call of it.
_SPECIALIZED = "_specialized_for_"


def optimized_here(graph_def: GraphDef, kept: tuple[str, ...]) -> GraphDef:
    """Return the graph as Grappler leaves it here, on a GPU where there is one."""
    capability = devices.device_of_type("GPU").capability
    architecture = "{}.{}".format(*capability) if capability else None
    return optimized_graph(graph_def, kept, architecture)


def optimized_graph(
    graph_def: GraphDef, kept: tuple[str, ...], architecture: str | None = None
) -> GraphDef:
    """Return the graph as Grappler's own optimizers leave it, `kept` nodes included.

    Only placed nodes are fused: they are on a CPU, or on a GPU of an `architecture`,
    which need not be present. What is for a GPU is returned with blank devices.
    """
    placed = on_device(graph_def, "GPU" if architecture else "CPU")
    request, options = request_for(placed, kept)
    if architecture:
        # Prices do not depend on layouts, and it would warn of every absent kernel.
        rewrites = options.graph_options.rewrite_options
        rewrites.layout_optimizer = rewrites.OFF
    optimized = run_grappler(request, options, private.cluster_of(architecture))
    result = graph_def if optimized is None else optimized
    return without_devices(result) if architecture else result


def inlined_graph(graph_def: GraphDef, kept: tuple[str, ...]) -> GraphDef:
    """Return the graph with its functions inlined, and nothing else done to it.

    Functions that XLA compiles are inlined too, and their loops and branches lowered.
    """
    inlinable = type(graph_def)()
    inlinable.CopyFrom(graph_def)
    functions = inlinable.library.function
    nodes = [*inlinable.node, *(node for f in functions for node in f.node_def)]
    for node in nodes:
        if node.op in CONTROL_FLOW:
            node.attr[LOWER].b = True
    for each in (*nodes, *functions):
        if COMPILED in each.attr:
            del each.attr[COMPILED]
            each.attr.pop(NOT_INLINED, None)
    request, options = request_for(inlinable, kept)
    rewrites = options.graph_options.rewrite_options
    rewrites.optimizers.append("function")
    inlined = run_grappler(request, options, private.cluster_of())
    return graph_def if inlined is None else inlined


def with_bodies(graph_def: GraphDef) -> GraphDef:
    """Return a graph with the functions that it calls, as the runtime has them.

    Grappler passes graphs whose functions are without bodies, where these were not
    inlined.
    """
    if all(function.ret for function in graph_def.library.function):
        return graph_def
    whole = type(graph_def)()
    whole.CopyFrom(graph_def)
    for function in whole.library.function:
        if function.signature.output_arg and not function.ret:
            _fill_in(function)
    return whole


def _fill_in(function: Any) -> None:
    """Give a function its body, where the runtime has it.

    One that Grappler has specialized for a call has the body of the one that it was
    made from, as far as its results need it.
    """
    name = str(function.signature.name)
    known = private.function_named(name.partition(_SPECIALIZED)[0])
    results = [arg.name for arg in function.signature.output_arg]
    if known is None or not set(results) <= set(known.ret):
        return
    body = {node.name: node for node in known.node_def}
    results_at = [
        *(known.ret[result] for result in results),
        *known.control_ret.values(),
    ]

    def nodes_at(inputs: Iterable[str]) -> list[str]:
        names = (text.lstrip("^").partition(":")[0] for text in inputs)
        return [each for each in names if each in body]

    needed = set(reached(nodes_at(results_at), lambda n: nodes_at(body[n].input)))
    function.node_def.extend(n for n in known.node_def if n.name in needed)
    for result in results:
        function.ret[result] = known.ret[result]
    for key, value in known.control_ret.items():
        function.control_ret[key] = value


def run_grappler(
    request: Any,
    options: Any,
    cluster: Any,
    without: str = "functions are planned as traced",
) -> GraphDef | None:
    """Return what Grappler makes of a request; warn and return None where it fails.

    Args:
      request: from `request_for`.
      options: from there, too.
      cluster: the devices to optimize for; None for those that are present.
      without: what becomes of graphs where it fails, for the warning.
    """
    grappler = private.grappler()
    if grappler is None:
        warn_once("OptimizeGraph", without)
        return None
    try:
        with stack.leaving_graphs_alone():
            optimized: GraphDef = grappler.OptimizeGraph(
                options, request, False, cluster=cluster
            )
        return optimized
    except Exception as error:
        logging.warning("Grappler fails, so that %s: %s", without, error)
        return None


def request_for(
    graph_def: GraphDef, kept: tuple[str, ...], config: Any = None
) -> tuple[Any, Any]:
    """Return the MetaGraphDef and the ConfigProto to ask Grappler with.

    `config` is one to fill in; by default it is the program's.
    """
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

    meta_graph = MetaGraphDef(graph_def=graph_def)
    meta_graph.collection_def["train_op"].node_list.value.extend(kept)
    config = private.grappler_options() if config is None else config
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    # The pass comes at the end of the first of two iterations.
    options.meta_optimizer_iterations = options.ONE
    return meta_graph, config


def graph_with_variables(graph: Any) -> GraphDef:
    """Return a function's FuncGraph with what gives the shapes of its variables too.

    Before   Placeholder(dtype=resource)
    After    _Arg(T=resource), as in the runtime, with the shapes behind the handle
    """
    graph_def: GraphDef = graph.as_graph_def()
    nodes = {node.name: node for node in graph_def.node}
    for index, tensor in enumerate(graph.inputs):
        contents = tracing.handle_contents(tensor)
        if not contents:
            continue
        node = nodes[tensor.op.name]
        node.op = "_Arg"
        node.attr["T"].CopyFrom(node.attr.pop("dtype"))
        node.attr["index"].i = index
        for content in contents:
            node.attr["_handle_shapes"].list.shape.append(content.shape)
            node.attr["_handle_dtypes"].list.type.append(content.dtype)
        node.attr.pop("shape", None)
    return graph_def


def kept_nodes(graph: Any) -> tuple[str, ...]:
    """Name what a function is run for: its results and its side effects."""
    results = [tensor.op.name for tensor in graph.outputs]
    effects = [op.name for op in graph.control_outputs]
    return tuple(dict.fromkeys((*results, *effects)))


def on_device(graph_def: GraphDef, device_type: str) -> GraphDef:
    """Return a copy with every node on the first device of a type."""
    return _with_devices(graph_def, f"{private.HOST}/device:{device_type}:0")


def without_devices(graph_def: GraphDef) -> GraphDef:
    """Return a copy in which no node names a device."""
    return _with_devices(graph_def, "")


def _with_devices(graph_def: GraphDef, device: str) -> GraphDef:
    placed = type(graph_def)()
    placed.CopyFrom(graph_def)
    bodies = (function.node_def for function in placed.library.function)
    for node in itertools.chain(placed.node, *bodies):
        node.device = device
    return placed
