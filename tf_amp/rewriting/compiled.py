"""Functions that XLA compiles: rewritten when made, compared, explained, run without.

Each is rewritten before its first run, and before any graph that calls it takes a copy.
The pairs of forward and backward functions that a tape around such a function makes are
functions of the same kind. A function that another one calls within XLA is copied,
since it may run outside of XLA too, where Grappler sees to it.

Where a plan is uncertain, steps are compared as those of other functions are. Grappler
makes no second instance of such a function, so that there is a second function, which
is called in its place: by Python, or by a graph that calls it (`called_in_turn`).

XLA has no way to pass a tensor to Python. Functions that are to be watched run without
it for a while (`WithoutXla`): each of them then comes to Grappler as a graph of its
own, and can tell what it gets.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from grappler_pass.annotations import SCALE, STAMP
from grappler_pass.garbage import collection_paused
from tf_amp._tensorflow_private import functions as private
from tf_amp._tensorflow_private import tracing
from tf_amp.compare import call_sites
from tf_amp.compare.own_steps import FLOAT32, MIXED
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.message_codes import Code
from tf_amp.rewriting import arriving_graphs, failures, graph_settings, host, stripping
from tf_amp.rewriting.graph_settings import device_type_of_compiled, settings_with_steps
from tf_amp.tracing import graph_names, grappler_preview, stack, stamps
from tf_amp.tracing.graph_names import name_of
from tf_amp.tracing.grappler_preview import CONTROL_FLOW, LOWER
from tf_amp.tracing.stamps import Stamp

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.functions.conversion import Known
    from grappler_pass.graph.shapes import Shape, Shapes
    from grappler_pass.graph.view import Item
    from grappler_pass.planning.draft import Draft, Settings
    from grappler_pass.planning.plan import Plan
    from tf_amp.rewriting.arriving_graphs import Arrival


def rewriting(make_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return TensorFlow's maker of functions that rewrites what XLA compiles."""

    @functools.wraps(make_function)
    def make_rewritten(
        name: Any, graph: Any, attrs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        attrs, without_xla = attrs or {}, host.current().without_xla
        if without_xla is not None:
            attrs = without_xla.attributes_for(graph, attrs)
        function = make_function(name, graph, attrs, *args, **kwargs)
        key = name if isinstance(name, bytes) else name.encode()
        call_sites.forget_with(graph, key)
        if without_xla is not None:
            without_xla.know(function, graph, attrs)
        if private.is_compiled(attrs) and not stack.leaves_graphs_alone():
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
        # What the graph was traced under.
        scope = scope_registry.scope_of(stamps.stamp_as_traced(graph).settings or "")
        config = AmpConfig() if scope is None else scope.config
        failures.report(error, access.name, config=config, before=graph.as_graph_def)


def _rewrite_accessed(access: private.FunctionAccess, graph: Any) -> None:
    """Rewrite a function; one in doubt gets an instance of another name beside it.

    By its own name it is what prices prefer, by the other what it is compared with.
    """
    from grappler_pass.functions.conversion import graph_from_function

    definition, library = access.definition(), access.library()
    known = tuple(map(known_argument, graph.inputs))
    graph_def, item = graph_from_function(definition, library, known)

    def shapes() -> Shapes:
        """Return what the traced graph knows; arguments have other names there."""
        found: dict[str, tuple[Shape | None, ...]] = {
            op.name: tuple(map(_shape, op.outputs)) for op in graph.get_operations()
        }
        arguments = zip(definition.signature.input_arg, known, strict=True)
        return found | {arg.name: (each.shape,) for arg, each in arguments}

    device_type = graph_settings.device_type_of_compiled()
    name, key = access.name, access.name.encode()

    def made_as(label: str, name: str) -> _Made | None:
        # XLA compiles it: Grappler gets no graph of it when it is called.
        site, given = call_sites.function_site(key), (graph_def, item, shapes)
        changed = call_sites.call_as(site, label, rewritten_bodies, *given, device_type)
        return _with_bodies(definition, graph_def, changed, name) if changed else None

    rewritten = made_as(MIXED, name)
    if rewritten is not None:
        _warn_of_gradients(graph.name, graph_def)
    others: dict[str, _Made | None] = {}
    comparison = call_sites.function_site(key).comparison
    compared = None if comparison is None else comparison.mixed
    if compared is not None and rewritten is not None:
        others[FLOAT32] = _Made(_named(definition, f"{name}__float32"))
    if compared not in (None, MIXED):
        others[compared] = made_as(compared, f"{name}__in_16_bits")
    instances = {label: other for label, other in others.items() if other is not None}
    if rewritten is None and not instances:
        return
    own, copies = rewritten or _Made(definition)
    added = [*copies, *(each for made in instances.values() for each in made.functions)]
    stripping.keep_traced(graph, definition, tuple(f.signature.name for _, f in added))
    # TensorFlow gives a graph the functions whose names it reaches, and Grappler cannot
    # add to them: with this function the others come into each graph that calls it.
    reaching = _named(own, own.signature.name)
    for number, made in enumerate(instances.values()):
        node = reaching.node_def.add(op="NoOp", name=f"tf_amp_instance_{number}")
        node.attr["_tf_amp_instance"].func.name = made.name
    access.replace(reaching)
    for like, function in added:
        access.add(function, like)
    call_sites.function_site(key).instances = {
        label: made.name.encode() for label, made in instances.items()
    }


def _warn_of_gradients(name: str, graph_def: GraphDef) -> None:
    """Say once that gradients leave a function as they are; XLA cannot branch on them.

    Args:
      name: of the function.
      graph_def: the function as traced, with those that it calls.
    """
    from grappler_pass.rewriting.second_try import skips

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
    from grappler_pass.functions.bodies import with_bodies
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
        if not any(STAMP in node.attr for node in body.graph_def.node):
            continue
        given = arriving_graphs.Given(
            body.graph_def, body.item, body.shapes, device_type=device_type
        )
        rewritten = arriving_graphs.rewritten_by_stamps(given)
        if rewritten is not None:
            changed[body.name] = rewritten
    return changed


def known_argument(tensor: Any) -> Known:
    """Return what is known of an argument, given its tensor."""
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


def called_in_turn(arrival: Arrival) -> GraphDef | None:
    """Return a graph that calls the instances whose turn it is.

    None where it calls those already.
    """
    in_doubt = [n for n in call_sites.undecided_compiled() if n in arrival.data]
    if not in_doubt:
        return None
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.functions.conversion import (
        called_by,
        library_of,
        rename_functions,
    )
    from tf_amp.compare import verdicts

    graph_def = arrival.running
    library = library_of(graph_def)
    # By the graph itself, not by a function that it calls.
    called = {name for node in graph_def.node for name in called_by(node, library)}
    compared = [name for name in in_doubt if name.decode() in called]
    has_instances = bool(compared) and verdicts.state_keeper(graph_def) is None
    entry = call_sites.current()
    others = {
        name.decode(): other.decode()
        for name in compared
        if (other := entry.instance_of(name, has_instances=has_instances)) != name
    }
    if not others:
        return None
    changed = GraphDef()
    changed.CopyFrom(graph_def)
    for node in changed.node:
        rename_functions(node, others)
    return changed


# From a graph, what is kept of it and its device's type to what the pass receives.
SettingsOf = Callable[[Any, "Item", str], "tuple[Item, Settings]"]


class DraftPart(NamedTuple):
    """The draft of one function's body, and how often it runs per step.

    Its name is put before those of its nodes; the outermost function has none.
    """

    name: str
    weight: float
    draft: Draft


def plan_of_parts(parts: Sequence[DraftPart]) -> Plan:
    """Return the plan of a step, given the drafts of a function and what it calls."""
    from grappler_pass.functions.bodies import PlanPart, merged

    first = parts[0]
    if len(parts) == 1 and not first.name:
        return first.draft.plan
    return merged([PlanPart(part.name, part.weight, part.draft.plan) for part in parts])


def drafts_of_callees(graph: Any, settings_of: SettingsOf) -> tuple[DraftPart, ...]:
    """Return the drafts of the compiled functions that a function calls, as traced."""
    return tuple(
        part._replace(name=f"{callee.name}/{part.name}".rstrip("/"))
        for callee in private.compiled_callees(graph)
        for part in drafts_of_compiled(callee, settings_of)
    )


def drafts_of_compiled(graph: Any, settings_of: SettingsOf) -> tuple[DraftPart, ...]:
    """Return the drafts of a function that XLA compiles, and of what is called in it.

    Raises:
      StageError: a plan cannot be made; the message names the stage.
    """
    from grappler_pass import pipeline
    from grappler_pass.functions.bodies import bodies_of
    from grappler_pass.graph.shapes import shapes_from_graph_def
    from grappler_pass.graph.view import Item
    from grappler_pass.rewriting.apply import is_rewritten

    graph_def = grappler_preview.graph_with_variables(graph)
    item = Item(fetch=grappler_preview.kept_nodes(graph))
    shapes = functools.partial(shapes_from_graph_def, graph_def)
    device_type, name = device_type_of_compiled(), name_of(graph)
    lists = settings_of(graph_def, item, device_type)[1].lists
    parts = []
    for body in bodies_of(graph_def, item, shapes, lists):
        if is_rewritten(body.graph_def):
            continue
        own_item, chosen = settings_of(body.graph_def, body.item, device_type)
        draft = pipeline.draft_graph(
            body.graph_def,
            own_item,
            settings_with_steps(chosen),
            shapes=body.shapes,
            name=body.name or name,
        )
        parts.append(DraftPart(body.name, body.weight, draft))
    return tuple(parts)


_ONLY_COMPILED = "Xla"


@dataclasses.dataclass(frozen=True)
class Uncompiled:
    """A function that runs without XLA for now.

    Attributes:
      graph: as traced.
      arguments: names of its placeholders by those that the runtime gives them.
    """

    graph: Any
    arguments: Mapping[str, str]


class WithoutXla:
    """Which functions run without XLA, so that an observer receives their graphs."""

    def __init__(self) -> None:
        """Know of none yet."""
        self._known: dict[str, Uncompiled] = {}

    def attributes_for(
        self, graph: Any, attributes: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return what a traced function is made with, so that it runs without XLA.

        Where it needs XLA, that is what it would be made with.
        """
        is_compiled = private.is_compiled(attributes)
        if is_compiled or private.is_traced_for_xla(graph):
            from tensorflow.core.framework.attr_value_pb2 import AttrValue

            # What is in loops and branches is inlined, as where there is no XLA.
            for op in graph.get_operations():
                if op.type in CONTROL_FLOW:
                    op._set_attr(LOWER, AttrValue(b=True))
        ops = graph.get_operations() if is_compiled else ()
        needs_xla = any(op.type.startswith(_ONLY_COMPILED) for op in ops)
        if is_compiled and not needs_xla:
            return private.without_compiling(attributes)
        return attributes

    def know(self, function: Any, graph: Any, attributes: Mapping[str, Any]) -> None:
        """Remember a function that runs without XLA, or is of the gradient of one."""
        if not private.is_without_compiling(attributes):
            return
        access = private.access_to(function)
        if access is None:
            return
        arguments = (str(a.name) for a in access.definition().signature.input_arg)
        placeholders = (str(tensor.op.name) for tensor in graph.inputs)
        found = Uncompiled(graph, dict(zip(arguments, placeholders, strict=True)))
        self._known[graph_names.number_of(graph)] = found

    def behind(self, graph_def: Any) -> Uncompiled | None:
        """Return the function whose stamped graph Grappler passes, if it is known."""
        stamps = (n.attr[STAMP].s for n in graph_def.node if STAMP in n.attr)
        numbers = dict.fromkeys(Stamp.from_bytes(stamp).number for stamp in stamps)
        known = (self._known.get(number) for number in numbers)
        return next((each for each in known if each is not None), None)
