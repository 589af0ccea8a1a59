"""Rewrite each function that XLA will compile as soon as it is made.

That is before its first run, and before any graph that calls it takes a copy. The pairs
of forward and backward functions that a tape around such a function makes are functions
of the same kind. A function that another one calls within XLA is copied, since it may
run outside of XLA too, where Grappler sees to it.

Where a plan is in doubt, steps are compared as those of other functions are. Grappler
makes no second instance of such a function, so that there is a second function, which
is called in its place: by Python, or by a graph that calls it (`instances`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from grappler_pass.annotations import SCALE, STAMP
from grappler_pass.garbage import collection_paused
from tf_amp._tensorflow_private import functions as private
from tf_amp._tensorflow_private import tracing
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.message_codes import Code
from tf_amp.rewriting import arriving_graphs, failures, host
from tf_amp.rewriting.compiled import homes, traced_bodies
from tf_amp.rewriting.compiled.pricing import settings_with_steps
from tf_amp.tracing import bypass, stamps

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
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
        with collection_paused():
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
    """Rewrite a function; one in doubt gets an instance of another name beside it.

    By its own name it is what prices prefer, by the other what it is compared with.
    """
    from grappler_pass.functions.conversion import graph_from_function
    from tf_amp.compare import call_sites
    from tf_amp.compare.alternation import FLOAT32, MIXED

    definition, library = access.definition(), access.library()
    known = tuple(map(_known, graph.inputs))
    graph_def, item = graph_from_function(definition, library, known)
    names = [arg.name for arg in definition.signature.input_arg]
    shapes = functools.partial(_shapes, graph, dict(zip(names, known, strict=True)))
    device_type = homes.device_type_of_compiled()
    name, key = access.name, access.name.encode()

    def made_as(label: str, name: str) -> _Made | None:
        with call_sites.made(key, label):
            changed = rewritten_bodies(graph_def, item, shapes, device_type)
        return _with_bodies(definition, graph_def, changed, name) if changed else None

    rewritten = made_as(MIXED, name)
    if rewritten is not None:
        _warn_of_gradients(graph.name, graph_def)
    others: dict[str, _Made | None] = {}
    compared = call_sites.label_compared(key)
    if compared is not None and rewritten is not None:
        others[FLOAT32] = _Made(_named(definition, f"{name}__float32"))
    if compared not in (None, MIXED):
        others[compared] = made_as(compared, f"{name}__in_16_bits")
    instances = {label: other for label, other in others.items() if other is not None}
    if rewritten is None and not instances:
        return
    own, copies = rewritten or _Made(definition)
    added = [*copies, *(each for made in instances.values() for each in made.functions)]
    traced_bodies.keep(graph, definition, tuple(f.signature.name for _, f in added))
    access.replace(_reaching(own, (made.name for made in instances.values())))
    for like, function in added:
        access.add(function, like)
    names_by_label = {label: m.name.encode() for label, m in instances.items()}
    call_sites.keep_compiled(graph, key, names_by_label)


def _warn_of_gradients(name: str, graph_def: GraphDef) -> None:
    """Say once that gradients leave a function as they are; XLA cannot branch on them.

    Args:
      name: of the function.
      graph_def: the function as traced, with those that it calls.
    """
    from grappler_pass.rewriting.second_try.taking import skips

    library = graph_def.library.function
    nodes = [*graph_def.node, *(node for each in library for node in each.node_def)]
    if any(SCALE in node.attr for node in nodes) and not skips(nodes):
        Code.OVERFLOW.warn_once(
            "%s, which XLA compiles, uses or returns gradients of a scaled loss. Where "
            "they overflow they are infinite or NaN, until the loss scale has fallen: "
            'where no optimizer takes them, loss_scale="none" scales nothing.',
            name,
        )


class _Made(NamedTuple):
    """A function that is made, and the copies of others that it alone calls.

    Each with the name of the function that it is a copy of.
    """

    definition: FunctionDef
    copies: tuple[tuple[str, FunctionDef], ...] = ()

    @property
    def name(self) -> str:
        """Of the function itself."""
        return str(self.definition.signature.name)

    @property
    def functions(self) -> tuple[tuple[str, FunctionDef], ...]:
        """All of them."""
        return (("", self.definition), *self.copies)


def _with_bodies(
    definition: FunctionDef,
    graph_def: GraphDef,
    changed: dict[str, GraphDef],
    name: str,
) -> _Made:
    """Return a function of another name with changed bodies."""
    from grappler_pass.functions.body_rewriting import with_bodies
    from grappler_pass.functions.conversion import function_from_graph, library_of

    suffix = f"__in_{name}"
    rewritten = with_bodies(graph_def, changed, lambda called: called + suffix)
    copies = tuple(
        (each.removesuffix(suffix), function)
        for each, function in library_of(rewritten).items()
        if each.endswith(suffix)
    )
    return _Made(_named(function_from_graph(rewritten, definition), name), copies)


def _named(definition: FunctionDef, name: str) -> FunctionDef:
    named = type(definition)()
    named.CopyFrom(definition)
    named.signature.name = name
    return named


def _reaching(definition: FunctionDef, others: Iterable[str]) -> FunctionDef:
    """Return a function with which others come into each graph that calls it.

    TensorFlow gives a graph the functions whose names it reaches, and Grappler cannot
    add to them.
    """
    reaching = _named(definition, definition.signature.name)
    for number, other in enumerate(others):
        node = reaching.node_def.add(op="NoOp", name=f"tf_amp_instance_{number}")
        node.attr["_tf_amp_instance"].func.name = other
    return reaching


def rewritten_bodies(
    graph_def: GraphDef, item: Any, shapes: Callable[[], Shapes], device_type: str
) -> dict[str, GraphDef]:
    """Return the bodies that change, by name of function, of a graph under XLA.

    All of them run on the device that the graph runs on.
    """
    from grappler_pass.functions.bodies import bodies_of
    from grappler_pass.graph.op_lists import OpLists

    changed = {}
    for body in bodies_of(graph_def, item, shapes, OpLists.for_dtype("bfloat16")):
        rewritten = _rewritten(body, device_type)
        if rewritten is not None:
            changed[body.name] = rewritten
    return changed


def _rewritten(body: Body, device_type: str) -> GraphDef | None:
    if not any(STAMP in node.attr for node in body.graph_def.node):
        return None
    given = arriving_graphs.Given(
        body.graph_def,
        lambda: body.item,
        body.shapes,
        adapted=settings_with_steps,
        device_type=device_type,
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
