"""The plan of a function, without running it.

The function is traced if it must be, Grappler optimizes a copy of its graph as it would
before the first run (inlining, lowering, fusing), and the outcome is planned. Settings
are those the function was traced under, else those in force, else the environment's.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, overload

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.graph.editing import name_in
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.decisions import UnaskedSteps
from grappler_pass.planning.draft import Settings
from grappler_pass.planning.plan import Plan
from tf_amp._tensorflow_private.functions import is_compiled_function
from tf_amp.compare.verdicts import StepVerdicts, own_steps_for
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError, NotMeasurableError
from tf_amp.rewriting import compiled, graph_settings
from tf_amp.run.batches import set_batch, signatures_of
from tf_amp.runtime.enabling import enable
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.prediction import Prediction, prediction_of
from tf_amp.tracing import grappler_preview
from tf_amp.tracing.graph_names import name_of
from tf_amp.tracing.stamp_reader import excluded_parts, marks_from_graph_def
from tf_amp.tracing.stamps import current_config

_T = TypeVar("_T", bound=Any)
# From a graph and the nodes it is run for to the graph that TensorFlow would run.
Optimized = Callable[[GraphDef, tuple[str, ...]], GraphDef]
NO_ARGUMENTS: Mapping[str, Any] = types.MappingProxyType({})


@overload
def explain(
    fn: Any,
    *args: Any,
    measure: Literal[True],
    fetches: Iterable[str] | None = None,
    **kwargs: Any,
) -> Prediction: ...


@overload
def explain(
    fn: Any,
    *args: Any,
    measure: Literal[False] = False,
    fetches: Iterable[str] | None = None,
    **kwargs: Any,
) -> Plan: ...


def explain(
    fn: Any,
    *args: Any,
    fetches: Iterable[str] | None = None,
    measure: bool = False,
    **kwargs: Any,
) -> Plan | Prediction:
    """Return the plan that a function would run with, and what it takes if asked to.

    Args:
      fn: a `tf.function`, any callable it could wrap (a Keras model), a
        ConcreteFunction, or a GraphDef.
      *args: what the function is called with: tensors or `tf.TensorSpec`; for a
        GraphDef, its fetches, one by one or in one list.
      fetches: names of the nodes whose outputs are read, for a GraphDef.
      measure: run the graph unchanged and rewritten, on synthetic data and private
        variables, and return the plan with predicted and measured times.
      **kwargs: named arguments of the function.

    Raises:
      ConfigError: an argument is neither a setting nor one of the function's.
      NotMeasurableError: it cannot be run outside of its program; the message says
        why.
      TensorFlowMissingError: TensorFlow is not installed, or too old.
      ValueError: a GraphDef without fetches, or with one that it does not hold.
      StageError: the plan cannot be made; the message names the stage.
    """
    check_tensorflow()
    check_named(explain, fn, kwargs)
    if measure:
        return _measured(fn, args, kwargs, fetches=fetches)
    return _planned(fn, args, kwargs, fetches=fetches)


def _planned(fn: Any, *arguments: Any, **options: Any) -> Plan:
    """Return a function's plan, by what `drafts_of` takes."""

    def settings_of(config: AmpConfig, device_type: str) -> Settings:
        chosen = graph_settings.settings_from_config(config, device_type)
        own_steps = own_steps_for(config, device_type)
        return foreseeing(dataclasses.replace(chosen, own_steps=own_steps))

    return compiled.plan_of_parts(
        tuple(drafts_of(fn, settings_of, *arguments, **options))
    )


def foreseeing(settings: Settings) -> Settings:
    """Return settings by which a plan says what steps will decide, or have decided."""
    own_steps = settings.own_steps
    if isinstance(own_steps, StepVerdicts):
        own_steps = own_steps._replace(foresees=True)
    return dataclasses.replace(settings, own_steps=own_steps)


def _measured(
    fn: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] = NO_ARGUMENTS,
    **options: Any,
) -> Prediction:
    """Return a function's plan with times, by what `drafts_of` takes."""

    def settings_of(config: AmpConfig, device_type: str) -> Settings:
        chosen = graph_settings.settings_from_config(config, device_type)
        # What steps might withdraw is to be seen measured.
        return dataclasses.replace(chosen, own_steps=UnaskedSteps())

    if not isinstance(fn, GraphDef):
        fn = concrete_function(fn, args, kwargs)
        if is_compiled_function(fn):
            raise NotMeasurableError(
                f"{name_of(fn.graph)} is compiled by XLA, of which single operations "
                "cannot be timed: explain it without measure=True, or without "
                "jit_compile."
            )
    drafts = drafts_of(fn, settings_of, args, kwargs, **options)
    return prediction_of(next(drafts).draft)


def drafts_of(
    fn: Any,
    settings_of: Callable[[AmpConfig, str], Settings],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] = NO_ARGUMENTS,
    *,
    fetches: Iterable[str] | None = None,
    batch: int | None = None,
    optimized: Optimized = grappler_preview.optimized_here,
) -> Iterator[compiled.DraftPart]:
    """Yield the drafts of a function, and of the compiled ones that it calls.

    Args:
      fn: as `explain` is given it, like what follows.
      settings_of: returns the settings of the pass for a configuration and a device.
      args: what the function is called with, or the fetches of a GraphDef.
      kwargs: its named arguments.
      fetches: names of nodes, for a GraphDef.
      batch: stands for an unknown first dimension of the inputs.
      optimized: returns a graph as TensorFlow would leave it.
    """

    def of_body(
        graph_def: GraphDef, item: Item, device_type: str
    ) -> tuple[Item, Settings]:
        config = config_for(graph_def)
        marked = item_of(graph_def, item.fetch, config)
        preserve = (*item.preserve, *marked.preserve)
        item = dataclasses.replace(item, preserve=preserve, excluded=marked.excluded)
        return item, settings_of(config, device_type)

    is_graph = isinstance(fn, GraphDef)
    fn = fn if is_graph else concrete_function(fn, args, kwargs)
    if not is_graph and is_compiled_function(fn):
        yield from compiled.drafts_of_compiled(fn.graph, of_body)
        return
    graph_def, fetched, name = traced_graph(fn, args, kwargs, fetches, batch)
    config = config_for(graph_def)
    graph_def = optimized(graph_def, fetched)
    draft = pipeline.draft_graph(
        graph_def,
        item_of(graph_def, fetched, config),
        settings_of(config, graph_settings.target_device_type(graph_def)),
        shapes=functools.partial(shapes_from_graph_def, graph_def),
        name=name,
    )
    yield compiled.DraftPart("", 1.0, draft)
    if not is_graph:
        yield from compiled.drafts_of_callees(fn.graph, of_body)


def traced_graph(
    fn: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] = NO_ARGUMENTS,
    fetches: Iterable[str] | None = None,
    batch: int | None = None,
) -> tuple[GraphDef, tuple[str, ...], str]:
    """Return a graph, the nodes it is run for, and its name, given as to `explain`.

    `batch` stands for an unknown first dimension of a function's inputs.
    """
    if not isinstance(fn, GraphDef):
        function = concrete_function(fn, args, kwargs)
        graph_def = grappler_preview.graph_with_variables(function.graph)
        if batch is not None:
            set_batch(graph_def, batch)
        fetched = grappler_preview.kept_nodes(function.graph)
        return graph_def, fetched, name_of(function.graph)

    def refusal(what: str) -> ValueError:
        return ValueError(
            f"{what}; name the nodes whose outputs are read: (graph_def, 'logits', "
            "'loss') or (graph_def, fetches=['logits', 'loss'])."
        )

    if args and fetches is not None:
        raise refusal(f"received {args!r} beside fetches={fetches!r}")
    listed: tuple[Any, ...] = args if fetches is None else (fetches,)
    # Names one by one, or one iterable of them.
    if len(listed) == 1 and isinstance(listed[0], Iterable):
        listed = (listed[0],) if isinstance(listed[0], str) else tuple(listed[0])
    for name in listed:
        if not isinstance(name, str):
            raise refusal(f"received {name!r} for a name")
    names = tuple(map(name_in, listed))
    present = {node.name for node in fn.node}
    missing = [name for name in names if name not in present]
    if missing:
        raise refusal(f"the GraphDef has no node {', '.join(missing)}")
    if not names:
        raise refusal("a GraphDef needs fetches")
    return fn, names, "graph"


def item_of(graph_def: GraphDef, fetched: tuple[str, ...], config: AmpConfig) -> Item:
    """Return the item of a graph that Grappler has optimized."""
    return Item(
        fetch=fetched,
        preserve=marks_from_graph_def(graph_def, scope_registry.canonical_id).strangers,
        excluded=excluded_parts(graph_def, config.exclude),
    )


def config_for(graph_def: GraphDef) -> AmpConfig:
    """Return the configuration that a graph was traced under, or that is in force."""
    marks = marks_from_graph_def(graph_def, scope_registry.canonical_id)
    scope = scope_registry.scope_of(marks.settings or "")
    config = scope.config if scope else current_config()
    return config or AmpConfig.from_env()


def is_concrete(fn: Any) -> bool:
    """Tell a ConcreteFunction from other callables."""
    return hasattr(fn, "structured_input_signature") and hasattr(fn, "graph")


def concrete_function(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the one graph of `fn` that these arguments select."""
    if is_concrete(fn):
        return fn
    if not hasattr(fn, "get_concrete_function"):
        fn = tf.function(fn)
    return fn.get_concrete_function(*args, **kwargs)


def check_named(task: Callable[..., Any], fn: Any, named: Iterable[str]) -> None:
    """Refuse names of arguments that nothing takes.

    The task takes settings by name and hands the rest on to `fn`: a GraphDef, a
    ConcreteFunction, or a callable. One that takes any name is handed all but the
    settings of `tf_amp.enable`.

    Raises:
      ConfigError: the function has no argument of one of these names.
    """
    taken, takes_any = _names_of(fn)
    settings = inspect.signature(enable).parameters
    for name in named:
        if name in taken or (takes_any and name not in settings):
            continue
        parameters = inspect.signature(task).parameters.values()
        allowed = sorted(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        remedy = ""
        if name in settings:
            remedy = (
                f" tf_amp.enable({name}=...) holds for what is traced afterwards. An "
                "argument that the function takes by ** is given to it in a lambda."
            )
        raise ConfigError(
            f"{task.__name__}: received {name}=; allowed are the settings "
            f"{', '.join(allowed)}, and the function's arguments"
            f"{': ' if taken else ''}{', '.join(sorted(taken))}.{remedy}"
        )


def _names_of(fn: Any) -> tuple[set[str], bool]:
    """Return the names that something gives its arguments, and if it takes others."""
    if isinstance(fn, GraphDef):
        return {node.name for node in fn.node if node.op == "Placeholder"}, False
    if is_concrete(fn):
        specs = tf.nest.flatten(fn.structured_input_signature)
        of_specs = {spec.name for spec in specs if isinstance(spec, tf.TensorSpec)}
        return {*fn.function_type.parameters, *of_specs} - {None}, False
    called = getattr(fn, "python_function", fn)
    try:
        parameters = list(inspect.signature(called).parameters.values())
        # Of a Keras model, what is called takes any, and `call` says what it is.
        if any(p.kind is p.VAR_KEYWORD for p in parameters) and hasattr(called, "call"):
            parameters += inspect.signature(called.call).parameters.values()
    except (TypeError, ValueError):
        return set(), True
    names = {
        p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
    return names, any(p.kind is p.VAR_KEYWORD for p in parameters)


def explain_saved_model(
    folder: pathlib.Path,
    signature: str | None = None,
    *,
    measure: bool = False,
    batch: int | None = None,
) -> tuple[Plan | Prediction, ...]:
    """Return the plan of each signature of a SavedModel, or of the one named.

    Those with the same plan, as Keras exports them, have one between them, which has
    the names of all for that of its graph. `batch` stands for an unknown first
    dimension of the inputs. Errors are those of `signatures_of` and of `explain`, to
    which `measure` is passed.
    """
    functions = signatures_of(folder, signature)
    by_name = {name: _planned(each, batch=batch) for name, each in functions.items()}
    plans = with_joined_names(by_name, lambda plan: dataclasses.replace(plan, graph=""))
    if not measure:
        return plans
    predictions = []
    for plan in plans:
        # The first of the names that a plan has now is enough.
        first = functions[plan.graph.partition(", ")[0]]
        measured = _measured(first, batch=batch)
        named = dataclasses.replace(measured.plan, graph=plan.graph)
        predictions.append(dataclasses.replace(measured, plan=named))
    return tuple(predictions)


def with_joined_names(
    results: Mapping[str, _T], key: Callable[[_T], Hashable]
) -> tuple[_T, ...]:
    """Return the first of those with the same key, its graph named as all of them."""
    names: dict[Hashable, list[str]] = {}
    for name, each in results.items():
        names.setdefault(key(each), []).append(name)
    return tuple(
        dataclasses.replace(results[same[0]], graph=", ".join(same))
        for same in names.values()
    )
