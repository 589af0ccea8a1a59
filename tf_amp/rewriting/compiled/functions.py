"""Rewrite each function that XLA will compile as soon as it is made.

That is before its first run, and before any graph that calls it takes a copy. The pairs
of forward and backward functions that a tape around such a function makes are functions
of the same kind. A function that another one calls within XLA is copied, since it may
run outside of XLA too, where Grappler sees to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from grappler_pass.annotations import STAMP
from tf_amp._tensorflow_private import functions as private
from tf_amp._tensorflow_private import tracing
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.rewriting import arriving_graphs, failures, host
from tf_amp.rewriting.compiled import traced_bodies
from tf_amp.rewriting.compiled.pricing import settings_under_xla
from tf_amp.tracing import bypass, stamps

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.functions.bodies import Body
    from grappler_pass.functions.conversion import Known
    from grappler_pass.graph.shapes import Shape, Shapes


def rewriting(make_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return TensorFlow's maker of functions that rewrites what XLA compiles."""

    @functools.wraps(make_function)
    def make_rewritten(
        name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        attrs, without_xla = attrs or {}, host.current().without_xla
        for each in without_xla:
            attrs = each.attributes_for(graph, attrs)
        function = make_function(name, graph, attrs, *args, **kwargs)
        for each in without_xla:
            each.know(function, graph, attrs)
        if private.is_compiled(attrs) and not bypass.leaves_graphs_alone():
            _rewrite(function, graph)
        return function

    return make_rewritten


def _rewrite(function: Any, graph: Any) -> None:
    """Rewrite a function of the runtime in place; warn where that fails."""
    access = private.access_to(function)
    if access is None:
        return
    try:
        _rewrite_accessed(access, graph)
    except Exception as error:
        config = _config_of(graph)
        failures.report(error, access.name, config=config, before=graph.as_graph_def)


def _config_of(graph: Any) -> AmpConfig:
    """Return what a graph was traced under."""
    stamp = stamps.stamp_of_graph(graph, stamps.Force(None))
    scope = scope_registry.scope_of(stamp.settings or "")
    return AmpConfig() if scope is None else scope.config


def _rewrite_accessed(access: private.FunctionAccess, graph: Any) -> None:
    from grappler_pass.functions.body_rewriting import with_bodies
    from grappler_pass.functions.conversion import (
        function_from_graph,
        graph_from_function,
        library_of,
    )

    definition, library = access.definition(), access.library()
    known = tuple(map(_known, graph.inputs))
    graph_def, item = graph_from_function(definition, library, known)
    names = [arg.name for arg in definition.signature.input_arg]
    shapes = functools.partial(_shapes, graph, dict(zip(names, known, strict=True)))
    changed = rewritten_bodies(graph_def, item, shapes)
    if not changed:
        return
    suffix = f"__in_{access.name}"
    rewritten = with_bodies(graph_def, changed, lambda name: name + suffix)
    made = library_of(rewritten)
    copies = tuple(name for name in made if name.endswith(suffix))
    traced_bodies.keep(graph, definition, copies)
    access.replace(
        function_from_graph(rewritten, definition),
        ((name.removesuffix(suffix), made[name]) for name in copies),
    )


def rewritten_bodies(
    graph_def: GraphDef, item: Any, shapes: Callable[[], Shapes]
) -> dict[str, GraphDef]:
    """Return the bodies that change, by name of function, of a graph under XLA."""
    from grappler_pass.functions.bodies import bodies_of
    from grappler_pass.graph.op_lists import OpLists

    changed = {}
    for body in bodies_of(graph_def, item, shapes, OpLists.for_dtype("bfloat16")):
        rewritten = _rewritten(body)
        if rewritten is not None:
            changed[body.name] = rewritten
    return changed


def _rewritten(body: Body) -> GraphDef | None:
    if not any(STAMP in node.attr for node in body.graph_def.node):
        return None
    given = arriving_graphs.Given(
        body.graph_def,
        lambda: body.item,
        body.shapes,
        adapted=settings_under_xla,
    )
    return arriving_graphs.rewritten_by_stamps(given)


def _known(tensor: Any) -> Known:
    from grappler_pass.functions.conversion import Known
    from grappler_pass.graph.shapes import shape_from_proto

    contents = (
        (each.dtype, shape_from_proto(each.shape))
        for each in tracing.handle_contents(tensor)
    )
    return Known(_shape(tensor), tuple(contents))


def _shape(tensor: Any) -> Shape | None:
    shape = tensor.shape
    return None if shape.rank is None else tuple(shape.as_list())


def _shapes(graph: Any, arguments: dict[str, Known]) -> Shapes:
    """Return what a traced graph knows; a function's arguments have other names."""
    found: dict[str, tuple[Shape | None, ...]] = {
        op.name: tuple(map(_shape, op.outputs)) for op in graph.get_operations()
    }
    found.update((name, (known.shape,)) for name, known in arguments.items())
    return found
