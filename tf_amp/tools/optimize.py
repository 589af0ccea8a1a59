"""`tf_amp.optimize`: a given function, model or graph, in mixed precision.

The original stays unchanged. What is returned shares its variables, and is not
rewritten again when it runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.view import Item
from tf_amp.config.amp_config import LowDtype, OptLevel
from tf_amp.rewriting import stripping
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools import explanation
from tf_amp.tools.convert.job import ConversionOptions, options_from
from tf_amp.tools.convert.rewriting import planner_for, rewrite, unmixed
from tf_amp.tracing import grappler_preview

_PREFIX = "mixed"


def optimize(
    x: Any,
    *args: Any,
    fetches: Iterable[str] | None = None,
    dtype: LowDtype | None = None,
    device_profile: str | None = None,
    opt_level: OptLevel | None = None,
    exclude: Iterable[str] = (),
    batch: int | None = None,
    **kwargs: Any,
) -> Any:
    """Return a function, model or graph in mixed precision.

    Args:
      x: a ConcreteFunction; a `tf.function` or callable, with the arguments to trace it
        for; a Keras model; or a GraphDef.
      *args: what a `tf.function` is called with: tensors or `tf.TensorSpec`; for a
        GraphDef, its fetches, one by one or in one list.
      fetches: names of the nodes whose outputs are read, for a GraphDef.
      dtype: "bfloat16" or "float16"; what suits the device by default.
      device_profile: name or path of one to plan for; that of the present device by
        default.
      opt_level: "O0" to "O3", as for `enable`.
      exclude: regular expressions; operations with such names stay float32.
      batch: size to plan for where the graph leaves it open.
      **kwargs: named arguments of the function.

    Returns:
      For a ConcreteFunction, or a function with arguments, a ConcreteFunction with the
      same signature; for a model, or a function without arguments, a callable that
      traces as the original does; for a GraphDef a new one.

    Raises:
      ConfigError: an option is unknown, or an argument is not one of the function's.
      TensorFlowMissingError: TensorFlow is not installed, or too old.
      ValueError: a GraphDef without fetches, or with one that it does not hold.
      TypeError: `x` is none of these.
    """
    check_tensorflow()
    options = options_from(
        dtype=dtype,
        device_profile=device_profile,
        opt_level=opt_level,
        exclude=exclude,
        batch=batch,
    )
    if not callable(x) and not isinstance(x, GraphDef):
        raise TypeError(
            f"optimize: received {x!r}; allowed are a ConcreteFunction, a tf.function "
            "or callable, a GraphDef and a Keras model. What is stored is converted by "
            "tf_amp.convert."
        )
    explanation.check_named(optimize, x, kwargs)
    if isinstance(x, GraphDef):
        _, kept, _ = explanation.traced_graph(x, args, {}, fetches)
        feed = (n.name for n in x.node if n.op.startswith("Placeholder"))
        return _rewritten(x, Item(fetch=kept, feed=tuple(feed)), options)
    if args or kwargs or explanation.is_concrete(x):
        function = explanation.concrete_function(x, args, kwargs)
        return _optimized_function(function, options)
    traced = x if hasattr(x, "get_concrete_function") else tf.function(x)
    signature = inspect.signature(getattr(traced, "python_function", x))
    optimized = functools.cache(lambda f: _optimized_function(f, options))

    @functools.wraps(getattr(x, "python_function", x))
    def call(*args: Any, **kwargs: Any) -> Any:
        """Call what is traced as the original would be, once per kind of call."""
        function = traced.get_concrete_function(*args, **kwargs)
        # A ConcreteFunction wants every argument, those with defaults too.
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return optimized(function)(*bound.args, **bound.kwargs)

    return call


def _rewritten(graph_def: GraphDef, item: Item, options: ConversionOptions) -> GraphDef:
    chosen = planner_for(options, graph_def, None)
    rewritten, _, _ = rewrite(graph_def, item, chosen)
    stripping.strip(rewritten)
    return rewritten


def _optimized_function(function: Any, options: ConversionOptions) -> Any:
    """Return a ConcreteFunction like the one given, over a rewritten graph."""
    graph_def = grappler_preview.graph_with_variables(function.graph)
    feed = tuple(tensor.op.name for tensor in function.inputs)
    item = Item(fetch=grappler_preview.kept_nodes(function.graph), feed=feed)
    rewritten = _rewritten(graph_def, item, options)
    # Arguments are to be what they are in a graph that is traced.
    traced = {n.name: n for n in function.graph.as_graph_def().node}
    for node in rewritten.node:
        if node.name in traced and traced[node.name].op == "Placeholder":
            node.CopyFrom(traced[node.name])
    args, kwargs = function.structured_input_signature
    run = _runner(function, rewritten)
    # The names and kinds of what the function is called with.
    vars(run)["__signature__"] = inspect.Signature(
        [
            inspect.Parameter(name, each.kind)
            for name, each in function.function_type.parameters.items()
        ]
    )
    with unmixed():
        optimized = tf.function(run, autograph=False).get_concrete_function(
            *args, **kwargs
        )
    # What it has captured lives as long as the original does.
    optimized.tf_amp_original = function
    return optimized


def _runner(function: Any, graph_def: GraphDef) -> Callable[..., Any]:
    """Return a Python function that puts a graph in the place of the function's own."""
    captures = [(inner.op.name, outer) for outer, inner in function.graph.captures]
    count = len(function.inputs) - len(captures)
    names = [tensor.op.name for tensor in function.inputs[:count]]
    results = [f"{tensor.op.name}:{tensor.value_index}" for tensor in function.outputs]

    def run(*args: Any, **kwargs: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        for variable in function.graph.variables:
            graph.watch_variable(variable)
        leaves = tf.nest.flatten((args, kwargs), expand_composites=True)
        tensors = [value for value in leaves if tf.is_tensor(value)]
        fed = dict(zip(names, tensors, strict=True))
        fed |= {name: graph.capture(outer) for name, outer in captures}
        imported = tf.graph_util.import_graph_def(graph_def, fed, results, name=_PREFIX)
        # Some places of the structure hold no tensor.
        structure, left = function.structured_outputs, iter(imported)
        places = tf.nest.flatten(structure, expand_composites=True)
        filled = [None if place is None else next(left) for place in places]
        return tf.nest.pack_sequence_as(structure, filled, expand_composites=True)

    return run
