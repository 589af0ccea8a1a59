"""Functions as cases: traced, optimized by Grappler, with the values they would get."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import GraphView
from tf_amp._tensorflow_private import tracing
from tf_amp._tensorflow_private.functions import is_compiled_function
from tf_amp.config.amp_config import AmpConfig
from tf_amp.rewriting import stripping
from tf_amp.rewriting.graph_settings import settings_under_xla
from tf_amp.run.batches import arguments_by_placeholder
from tf_amp.run.graph_cases import GraphCase
from tf_amp.run.graph_copy import Array
from tf_amp.tools.choice import Choice
from tf_amp.tools.explain import explanation
from tf_amp.tools.verify.comparing import named_leaves
from tf_amp.tools.verify.watching import gradients_of, outputs_of
from tf_amp.tracing import grappler_preview
from tf_amp.tracing.graph_names import name_of
from tf_amp.tracing.stamp_reader import variable_names, with_traced_shapes


def case_of(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    choice: Choice,
    fetches: Iterable[str] | None = None,
) -> GraphCase:
    """Return a function or a GraphDef as a case, given as to `tf_amp.explain`."""
    if isinstance(fn, GraphDef):
        graph_def, kept, name = explanation.traced_graph(fn, args, kwargs, fetches)
        given = {f"{key}:0": np.asarray(value) for key, value in kwargs.items()}
        return _case_from_graph(graph_def, kept, choice, given, name=name)
    function = explanation.concrete_function(fn, args, kwargs)
    values = arguments_by_placeholder(function, args, kwargs)
    return case_from_function(function, choice, values)


def case_from_function(
    function: Any,
    choice: Choice,
    values: Mapping[str, Array],
    batch: int | None = None,
) -> GraphCase:
    """Return a ConcreteFunction as a case, with the values its variables have now.

    Those of its arguments are given, by the names that a sandbox gives them; `batch`
    stands for an unknown first dimension of theirs.
    """
    captured, names = captured_values(function)
    graph_def, kept, name = explanation.traced_graph(function, (), {}, batch=batch)
    return _case_from_graph(
        graph_def,
        kept,
        choice,
        {**captured, **values},
        name=name,
        variables=names,
        outputs=_outputs_of(function),
        is_compiled=is_compiled_function(function),
    )


def case_from_traced(graph: Any, values: Mapping[str, Array]) -> GraphCase:
    """Return a traced function that XLA compiles as a case, with its arguments."""
    return _case_from_graph(
        grappler_preview.graph_with_variables(graph),
        grappler_preview.kept_nodes(graph),
        Choice(),
        values,
        name=name_of(graph),
        outputs=_outputs_of(graph),
        is_compiled=True,
    )


def captured_values(function: Any) -> tuple[dict[str, Array], dict[str, str]]:
    """Return what a function's variables hold, and their names, by name of the handle.

    Other tensors that it has captured are among the values, as `node:output`.
    """
    try:
        variables = {id(v.handle): str(v.name) for v in function.graph.variables}
    except AssertionError:
        # Of a SavedModel that nobody holds; handles keep the values all the same.
        variables = {}
    held: dict[str, Array] = {}
    names: dict[str, str] = {}
    for outer, placeholder in function.graph.captures:
        key = placeholder.op.name
        contents = tracing.handle_contents(outer)
        if len(contents) == 1:
            held[key] = np.asarray(tracing.variable_value(outer, contents[0]))
            names[key] = variables.get(id(outer), key).partition(":")[0]
        elif hasattr(outer, "numpy") and outer.dtype.is_numpy_compatible:
            held[f"{key}:0"] = np.asarray(outer)
    return held, names


def _case_from_graph(
    graph_def: Any,
    kept: tuple[str, ...],
    choice: Choice,
    values: Mapping[str, Array],
    *,
    name: str,
    variables: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    is_compiled: bool = False,
) -> GraphCase:
    """Return a traced graph, run for the nodes that are kept, as a case."""
    config = choice.applied_to(explanation.config_for(graph_def))
    # What it calls is in 16 bits already, also where it stays float32 itself.
    is_compiled = is_compiled or stripping.has_rewritten(graph_def)
    if is_compiled:
        optimized = _inlined_as_traced(graph_def, kept)
    else:
        optimized = grappler_preview.optimized_graph(graph_def, kept)
    case = _unwatched_case(optimized, kept, config, values, name)
    if is_compiled:
        under_xla = settings_under_xla(case.settings)
        case = dataclasses.replace(case, settings=under_xla)
    return watched(case, variables, outputs)


def _unwatched_case(
    graph_def: Any,
    kept: tuple[str, ...],
    config: AmpConfig,
    values: Mapping[str, Array],
    name: str,
) -> GraphCase:
    """Return a graph as Grappler leaves it as a case."""
    item, chosen = explanation.item_and_settings(graph_def, kept, config)
    shapes = with_traced_shapes(graph_def, shapes_from_graph_def(graph_def))
    return GraphCase(graph_def, item, shapes, chosen, values, name=name)


def watched(
    case: GraphCase,
    variables: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
) -> GraphCase:
    """Return a case of which outputs and gradients are compared.

    Args:
      case: watches nothing yet.
      variables: names for people by name of the handle; None: as traced.
      outputs: names for people of the tensors to compare, by `node:output`; None: all
        that the nodes which are fetched make.
    """
    view = GraphView.from_graph_def(case.graph_def, case.item)
    if variables is None:
        variables = variable_names(view)
    fetches = case.item.fetch
    if outputs is not None:
        fetches = tuple(dict.fromkeys(key.rpartition(":")[0] for key in outputs))
    tensors = (
        *outputs_of(view, fetches, outputs),
        *gradients_of(view, case.settings.lists, case.shapes, variables),
    )
    return dataclasses.replace(case, watched=tensors, variables=variables)


def plain_case(fn: Any, fetches: Iterable[str] = ()) -> GraphCase:
    """Return a graph as a case, its functions inlined and nothing fused.

    It is a GraphDef with the nodes to run, or a ConcreteFunction, whose variables have
    their values.
    """
    if isinstance(fn, GraphDef):
        graph_def, kept, name = fn, tuple(fetches), ""
        values: Mapping[str, Array] = {}
    else:
        graph_def, kept, name = explanation.traced_graph(fn, (), {})
        values, _ = captured_values(fn)
    config = explanation.config_for(graph_def)
    inlined = _inlined_as_traced(graph_def, kept)
    return _unwatched_case(inlined, kept, config, values, name)


def _inlined_as_traced(graph_def: Any, kept: tuple[str, ...]) -> Any:
    """Return a graph with its functions inlined, those rewritten for XLA as traced."""
    traced = copy.deepcopy(graph_def)
    stripping.restore_traced(traced)
    return grappler_preview.inlined_graph(traced, kept)


def _outputs_of(function: Any) -> dict[str, str]:
    """Return the names of a function's results by `node:output`."""
    leaves = [name for name, _ in named_leaves(function.structured_outputs)]
    if len(leaves) != len(function.outputs):
        leaves = [f"output_{number}" for number in range(len(function.outputs))]
    names = zip(leaves, function.outputs, strict=True)
    return {tensor.name: leaf for leaf, tensor in names}
