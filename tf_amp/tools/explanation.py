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
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, TypeVar, cast, overload

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.graph.editing import name_in
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Settings
from grappler_pass.planning.plan import Plan
from tf_amp._tensorflow_private.functions import is_compiled_function
from tf_amp.compare.verdicts import own_steps_for
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError, NotMeasurableError
from tf_amp.rewriting import compiled, graph_settings
from tf_amp.run.batches import set_batch, signatures_of
from tf_amp.runtime import switch
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.prediction import Prediction, prediction_of
from tf_amp.tracing import grappler_preview
from tf_amp.tracing.graph_names import name_of
from tf_amp.tracing.stamp_reader import Marks, excluded_parts, marks_from_graph_def
from tf_amp.tracing.stamps import current_config

_T = TypeVar("_T", bound=Any)


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
      measure: run the graph as it is and rewritten, on made-up data and private
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
    return _explained(fn, args, kwargs, fetches=fetches, measure=measure)


def _explained(
    fn: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] = types.MappingProxyType({}),
    *,
    fetches: Iterable[str] | None = None,
    measure: bool = False,
    batch: int | None = None,
) -> Plan | Prediction:
    """Do what `explain` does; `batch` stands for open first dimensions of inputs."""
    if not isinstance(fn, GraphDef):
        fn = concrete_function(fn, args, dict(kwargs))
        if is_compiled_function(fn) and measure:
            raise NotMeasurableError(
                f"{name_of(fn.graph)} is compiled by XLA, of which single operations "
                "cannot be timed: explain it without measure=True, or without "
                "jit_compile."
            )
        if is_compiled_function(fn):
            return compiled.plan_of_compiled(fn.graph, _settings_of_body)
    graph_def, kept, name = traced_graph(fn, args, dict(kwargs), fetches, batch)
    config = config_for(graph_def)
    graph_def = grappler_preview.optimized_graph(graph_def, kept)
    item, chosen = item_and_settings(graph_def, kept, config)
    chosen = _foreseeing(chosen, config, graph_settings.target_device_type(graph_def))
    shapes = functools.partial(shapes_from_graph_def, graph_def)
    if measure:
        return prediction_of(graph_def, item, chosen, shapes(), name)
    plan = pipeline.plan_graph(graph_def, item, chosen, shapes=shapes, name=name)
    if isinstance(fn, GraphDef):
        return plan
    return compiled.plan_with_compiled(plan, fn.graph, _settings_of_body)


def _settings_of_body(
    graph_def: GraphDef, item: Item, device_type: str
) -> tuple[Item, Settings]:
    """Return the item and the settings of a body that runs on some device."""
    config = config_for(graph_def)
    chosen = graph_settings.settings_from_config(config, device_type)
    chosen = _foreseeing(chosen, config, device_type)
    return item_of_body(graph_def, item, config), chosen


def _foreseeing(chosen: Settings, config: AmpConfig, device_type: str) -> Settings:
    """Return settings that know what steps have decided, and will once they run."""
    own_steps = own_steps_for(config, device_type)
    if own_steps is not None:
        own_steps = own_steps._replace(foresees=True)
    return dataclasses.replace(chosen, own_steps=own_steps)


def item_of_body(graph_def: GraphDef, item: Item, config: AmpConfig) -> Item:
    """Return the item of a body, given that of its calls."""
    own = item_of(graph_def, item.fetch, config)
    preserve = (*item.preserve, *own.preserve)
    return dataclasses.replace(item, preserve=preserve, excluded=own.excluded)


def traced_graph(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fetches: Iterable[str] | None = None,
    batch: int | None = None,
) -> tuple[GraphDef, tuple[str, ...], str]:
    """Return a graph, the nodes it is run for, and its name, given as to `explain`.

    `batch` stands for an unknown first dimension of a function's inputs.
    """
    if isinstance(fn, GraphDef):
        return fn, _node_names(fn, _fetches(args, fetches)), "graph"
    function = concrete_function(fn, args, kwargs)
    graph_def = grappler_preview.graph_with_variables(function.graph)
    if batch is not None:
        set_batch(graph_def, batch)
    kept = grappler_preview.kept_nodes(function.graph)
    return graph_def, kept, name_of(function.graph)


def item_and_settings(
    graph_def: GraphDef, kept: tuple[str, ...], config: AmpConfig
) -> tuple[Item, Settings]:
    """Return the item and the settings of a graph that TensorFlow has not passed."""
    chosen = graph_settings.settings_from_config(
        config, graph_settings.target_device_type(graph_def)
    )
    return item_of(graph_def, kept, config), chosen


def item_of(graph_def: GraphDef, kept: tuple[str, ...], config: AmpConfig) -> Item:
    """Return the item of a graph that Grappler has optimized."""
    return Item(
        fetch=kept,
        preserve=_marks(graph_def).strangers,
        excluded=excluded_parts(graph_def, config.exclude),
    )


def config_for(graph_def: GraphDef) -> AmpConfig:
    """Return the configuration that a graph was traced under, or that is in force."""
    scope = scope_registry.scope_of(_marks(graph_def).settings or "")
    config = scope.config if scope else current_config()
    return config or AmpConfig.from_env()


def _marks(graph_def: GraphDef) -> Marks:
    return marks_from_graph_def(graph_def, scope_registry.canonical_id)


def is_concrete(fn: Any) -> bool:
    """Tell a ConcreteFunction from other callables."""
    return hasattr(fn, "structured_input_signature") and hasattr(fn, "graph")


def concrete_function(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the one graph of `fn` that these arguments select."""
    if is_concrete(fn):
        return fn
    if not hasattr(fn, "get_concrete_function"):
        fn = tf.function(fn)
    return fn.get_concrete_function(*args, **kwargs)


def _fetches(args: tuple[Any, ...], fetches: Iterable[str] | None) -> tuple[str, ...]:
    """Return the fetches of a GraphDef: names one by one, or one iterable of them."""
    if args and fetches is not None:
        raise _no_fetches(f"received {args!r} beside fetches={fetches!r}")
    given: tuple[Any, ...] = args if fetches is None else (fetches,)
    if len(given) == 1 and isinstance(given[0], Iterable):
        given = (given[0],) if isinstance(given[0], str) else tuple(given[0])
    for name in given:
        if not isinstance(name, str):
            raise _no_fetches(f"received {name!r} for a name")
    return given


def _node_names(graph_def: GraphDef, fetches: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(map(name_in, fetches))
    present = {node.name for node in graph_def.node}
    missing = [name for name in names if name not in present]
    if missing:
        raise _no_fetches(f"the GraphDef has no node {', '.join(missing)}")
    if not names:
        raise _no_fetches("a GraphDef needs fetches")
    return names


def _no_fetches(what: str) -> ValueError:
    return ValueError(
        f"{what}; name the nodes whose outputs are read: (graph_def, 'logits', 'loss') "
        "or (graph_def, fetches=['logits', 'loss'])."
    )


def check_named(task: Callable[..., Any], fn: Any, named: Iterable[str]) -> None:
    """Refuse names of arguments that are meant for nobody.

    The task takes settings by name and hands the rest on to `fn`: a GraphDef, a
    ConcreteFunction, or a callable. One that takes any name is handed all but the
    settings of `tf_amp.enable`.

    Raises:
      ConfigError: the function has no argument of one of these names.
    """
    known, takes_any = _names_of(fn)
    settings = inspect.signature(switch.enable).parameters
    for name in named:
        if name in known or (takes_any and name not in settings):
            continue
        own = inspect.signature(task).parameters.values()
        allowed = sorted(p.name for p in own if p.kind is p.KEYWORD_ONLY)
        remedy = ""
        if name in settings:
            remedy = (
                f" tf_amp.enable({name}=...) holds for what is traced afterwards. An "
                "argument that the function takes by ** is given to it in a lambda."
            )
        raise ConfigError(
            f"{task.__name__}: received {name}=; allowed are the settings "
            f"{', '.join(allowed)}, and the function's arguments"
            f"{': ' if known else ''}{', '.join(sorted(known))}.{remedy}"
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
    found = {
        name: cast("Plan", _explained(each, batch=batch))
        for name, each in functions.items()
    }
    plans = with_joined_names(found, lambda plan: dataclasses.replace(plan, graph=""))
    if not measure:
        return plans
    # The first of the names that a plan has now is enough.
    first = (functions[plan.graph.partition(", ")[0]] for plan in plans)
    measured = (
        cast("Prediction", _explained(each, measure=True, batch=batch))
        for each in first
    )
    return tuple(
        dataclasses.replace(m, plan=dataclasses.replace(m.plan, graph=plan.graph))
        for m, plan in zip(measured, plans, strict=True)
    )


def with_joined_names(
    found: Mapping[str, _T], key: Callable[[_T], Hashable]
) -> tuple[_T, ...]:
    """Return the first of those with the same key, its graph named as all of them."""
    names: dict[Hashable, list[str]] = {}
    for name, each in found.items():
        names.setdefault(key(each), []).append(name)
    return tuple(
        dataclasses.replace(found[same[0]], graph=", ".join(same))
        for same in names.values()
    )
