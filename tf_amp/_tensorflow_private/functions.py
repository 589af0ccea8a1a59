"""TensorFlow's private names around functions, runs of Sessions, and servers.

TensorFlow makes an instance of a function, optimized by itself, for each ConfigProto
that comes with its calls in eager mode. One function can so be run rewritten and
unchanged, call by call, on the same variables. A Session makes one for each list of
feeds, fetches and targets. Servers compute what other processes have traced, and
workers that train in step hear of each other through a service of TensorFlow's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from grappler_pass.graph.walks import function_attrs, reached
from tf_amp._tensorflow_private import eager_context, hooks, unless_gone, warn_once
from tf_amp._tensorflow_private.tracing import (
    copied_variable,
    outwards,
    traced_graph,
)

_WITHOUT = "functions compiled by XLA stay float32"
# Every function of the runtime is made by it: those of the program, and the pairs of
# forward and backward functions that a tape around a function needs.
(MAKE_FUNCTION,) = hooks(
    _WITHOUT,
    "tensorflow.python.eager.polymorphic_function.atomic_function:from_func_graph",
)
_CONCRETE = "tensorflow.python.eager.polymorphic_function.concrete_function"
# Of functions that XLA compiles, and of calls of them.
COMPILED = "_XlaMustCompile"
# Of functions that stay a graph of their own where they are called.
NOT_INLINED = "_noinline"


def is_compiled(attributes: Mapping[str, Any]) -> bool:
    """Return whether a function with such attributes is compiled by XLA."""
    return _is_set(attributes, COMPILED)


def without_compiling(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of a function that TensorFlow runs by itself, as a whole."""
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    kept = {name: value for name, value in attributes.items() if name != COMPILED}
    return kept | {NOT_INLINED: AttrValue(b=True)}


def is_without_compiling(attributes: Mapping[str, Any]) -> bool:
    """Return whether attributes may come from `without_compiling`.

    The forward and backward functions of such a function inherit them.
    """
    return _is_set(attributes, NOT_INLINED)


def _is_set(attributes: Mapping[str, Any], name: str) -> bool:
    value = attributes.get(name)
    return bool(getattr(value, "b", value))


def is_compiled_function(function: Any) -> bool:
    """Return whether a ConcreteFunction is compiled by XLA."""
    definition = getattr(function, "function_def", None)
    return definition is not None and is_compiled(dict(definition.attr))


@unless_gone(
    "GraphOrParentsInXlaContext",
    "functions compiled by XLA branch where they could select",
    False,
)
def is_traced_for_xla(graph: Any) -> bool:
    """Return whether a graph is made while a function is traced that XLA compiles."""
    module = importlib.import_module("tensorflow.python.ops.control_flow_util")
    return bool(module.GraphOrParentsInXlaContext(graph))


@unless_gone(
    "_BACKWARD_PREFIX", "functions may scale recomputed gradients twice", False
)
def is_backward_pass(graph: Any) -> bool:
    """Return whether a graph, or one around it, is the backward pass of a function."""
    prefix: str = importlib.import_module(_CONCRETE)._BACKWARD_PREFIX
    names = (getattr(each, "name", "") for each in outwards(graph))
    return any(name.startswith(prefix) for name in names)


@unless_gone("FuncGraph._functions", "compiled functions are not explained", ())
def compiled_callees(graph: Any) -> tuple[Any, ...]:
    """Return the graphs, as traced, of the compiled functions that a graph calls."""
    functions = graph._functions.values()
    return tuple(f.graph for f in functions if is_compiled(dict(f.attributes)))


def untraced(function: Any) -> Any:
    """Return a tf.function as it was made, without its traces; others as they are."""
    import tensorflow as tf

    if not isinstance(function, tf.types.experimental.PolymorphicFunction):
        return function
    try:
        return function._clone(None)
    except AttributeError:
        warn_once("Function._clone", "functions are measured in the types they have")
        return function


@unless_gone(
    "_device_function_stack",
    "compiled functions are planned for a GPU wherever there is one",
    "",
)
def device_type_in_force() -> str:
    """Return the type of device that `tf.device` says here; "" where it says none."""
    import tensorflow as tf

    # What is named around this point of the program, the innermost first.
    for graph in outwards(traced_graph()):
        for scope in graph._device_function_stack.peek_objs():
            if scope.function is None:
                return ""
            # Not so of a function that chooses for each operation.
            if hasattr(scope.function, "to_string"):
                spec = tf.DeviceSpec.from_string(scope.function.to_string())
                if spec.device_type:
                    return str(spec.device_type)
    spec = tf.DeviceSpec.from_string(eager_context().device_name or "")
    return spec.device_type or ""


class FunctionAccess:
    """One function of the runtime, by its name: its definition and those it calls."""

    def __init__(self, function: Any) -> None:
        """Look a function up.

        Raises:
          AttributeError: TensorFlow's functions have changed.
        """
        self._function = function
        self._context = function._bound_context
        self._callees = {f.name.decode(): f for f in function._children}
        self.name: str = function.name.decode()

    def definition(self) -> Any:
        """Return its FunctionDef."""
        return self._function.definition

    def library(self) -> dict[str, Any]:
        """Return the FunctionDefs of all functions that it may call, by name."""
        return {name: f.definition for name, f in self._callees.items()}

    def add(self, definition: Any, like: str = "") -> None:
        """Make a function that is not known yet, which lives as long as this one does.

        Its signature is that of the named function that this one calls, or this one's.
        """
        maker = importlib.import_module(MAKE_FUNCTION.module)
        known = self._callees.get(like, self._function)
        made = maker.from_function_def(definition, known.function_type)
        self._function._children.append(made)

    def replace(self, definition: Any) -> None:
        """Let it be another function of its name and signature from now on."""
        self._context.remove_function(self.name)
        self._context.add_function_def(definition)
        self._function._cached_definition = None


@unless_gone("AtomicFunction.definition", _WITHOUT, None)
def access_to(function: Any) -> FunctionAccess | None:
    """Return access to a function of the runtime; None where there is none."""
    return FunctionAccess(function)


def executed_graphs(first_call: Callable[[], object]) -> Sequence[Any]:
    """Return the GraphDefs that the first call of a `tf.function` executes.

    TensorFlow reports a graph only while it makes an instance of a function, once all
    is rewritten. What XLA compiles it does not report; there the function's definition
    is what is executed.
    """
    import tensorflow as tf

    context = eager_context()
    context.enable_run_metadata()
    try:
        # With an operation TensorFlow passes on now what it has gathered so far.
        tf.identity(0.0)
        context.export_run_metadata()
        first_call()
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    graphs: Sequence[Any] = metadata.partition_graphs
    return graphs


def definitions(context: Any, name: bytes) -> Iterator[Any]:
    """Yield the FunctionDefs of the named function, and of those that it calls."""
    definition_of = functools.cache(context.get_function_def)

    def callees(caller: bytes) -> Iterator[bytes]:
        for node in definition_of(caller).node_def:
            called = (f.name.encode() for f in function_attrs(node))
            yield from filter(context.has_function, called)

    begin = [name] if context.has_function(name) else []
    return map(definition_of, reached(begin, callees))


_CONTEXT = "tensorflow.python.eager.context"
_PREDICTED = "predictions alone decide whether 16 bits are used"
(CALL_IN_EAGER_MODE,) = hooks(_PREDICTED, f"{_CONTEXT}:Context.call_function")
(RUN_IN_SESSION,) = hooks(
    "in Sessions predictions alone decide, and overflows and failures are not shown",
    "tensorflow.python.client.session:BaseSession._do_run",
)
# Made once: each call of a function is within one.
_UNLABELLED = contextlib.nullcontext()
# The label of instances whose parts XLA compiles, as far as it can: clusters.
CLUSTERED = "clusters"
# That of an instance that XLA compiles as a whole: another function.
WHOLE = "whole"
_PREFIX = "tf_amp_"
_STEP_OF_KERAS = "one_step_on_data"
# TensorFlow's executor that starts no other thread for an op.
_ON_CALLING_THREAD = "SINGLE_THREADED_EXECUTOR"


def in_instance(context: Any, label: str) -> AbstractContextManager[None]:
    """Let this thread call the instances of functions that belong to a label.

    The eager context has those without a label that are called without this.
    """
    return _Labelled(context, label) if label else _UNLABELLED


class _Labelled(AbstractContextManager[None]):
    """Takes half as long as a generator would: small functions are called so."""

    __slots__ = ("_context", "_given", "_label")

    def __init__(self, context: Any, label: str) -> None:
        self._context, self._label = context, label

    def __enter__(self) -> None:
        self._given = given = self._context.function_call_options
        self._context.function_call_options = _labelled(
            given.config_proto_serialized, self._label
        )

    def __exit__(self, *error: object) -> None:
        self._context.function_call_options = self._given


def elsewhere(context: Any, call: Any) -> Callable[[Callable[[Any], None]], None]:
    """Return how another thread does something with calls as this one makes them."""
    options, device = context.function_call_options, context.device_name

    def there(work: Callable[[Any], None]) -> None:
        import tensorflow as tf

        context.function_call_options = options
        with tf.device(device or None):
            work(call)

    return there


def on_copies(call_function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a way to call a function that changes no variable of the program."""

    def call_on_copies(context: Any, name: bytes, inputs: Any, *args: Any) -> Any:
        import tensorflow as tf

        variables = {
            number: copied_variable(each)
            for number, each in enumerate(inputs)
            if each.dtype == tf.resource
        }
        copies = [
            variables[number].handle if number in variables else each
            for number, each in enumerate(inputs)
        ]
        return call_function(context, name, copies, *args)

    return call_on_copies


def another_on_copies(
    name: bytes,
    results: int,
    arguments: Callable[[Sequence[Any]], Sequence[Any]],
    *,
    stays_on_thread: bool,
) -> Callable[..., Any]:
    """Return how `on_copies` calls another function than the one that is called.

    Args:
      name: of the other one.
      results: how many it has.
      arguments: of the other one, given those of the call.
      stays_on_thread: whether it runs on the thread that calls it, and so does XLA;
        that executor is for CPUs alone.
    """
    executor = _ON_CALLING_THREAD if stays_on_thread else ""

    def way(call_function: Callable[..., Any]) -> Callable[..., Any]:
        call_on_copies = on_copies(call_function)

        def call_another(context: Any, _: bytes, inputs: Any, *args: Any) -> Any:
            given = context.function_call_options
            context.function_call_options = _options(
                given.config_proto_serialized, executor_type=executor
            )
            try:
                return call_on_copies(context, name, arguments(inputs), results)
            finally:
                context.function_call_options = given

        return call_another

    return way


@functools.cache
def make_xla_ready() -> None:
    """Start XLA, and let TensorFlow say which ops it knows: not before it compiles."""
    import tensorflow as tf

    with tf.init_scope():
        tf.function(lambda: tf.zeros([]), jit_compile=True)()


def has_instances(context: Any) -> bool:
    """Return whether functions may have several instances, and calls are awaited."""
    try:
        _labelled(context.function_call_options.config_proto_serialized, "any")
        return not context.is_async()
    except (AttributeError, TypeError, ValueError):
        warn_once("Context.function_call_options", _PREDICTED)
        return False


def targets_of_instance(
    number: int, targets: Sequence[Any], fetches: Sequence[Any]
) -> list[Any]:
    """Return what to run, besides fetches, so that a numbered instance of a graph runs.

    Of the instances that a Session makes, 0 is the one that is run without this. There
    may be no fetches if there are targets.
    """
    if not number:
        return [*targets]
    named = [*targets, *(fetch.op for fetch in fetches)]
    return [*targets, *[named[0]] * number]


def is_of_cluster(error: Exception) -> bool:
    """Return whether an error comes from a cluster, and not from the program."""
    return f"{_PREFIX}{CLUSTERED}_" in str(error)


def forbids_compiling(context: Any, name: bytes) -> bool:
    """Return whether a function, or one that it calls, is of `jit_compile=False`.

    Keras makes the steps of its models so, whoever has chosen it.
    """
    return any(
        COMPILED in each.attr and not each.attr[COMPILED].b
        for each in definitions(context, name)
        if _STEP_OF_KERAS not in each.signature.name
    )


@functools.lru_cache(maxsize=16)
def _labelled(config: bytes, label: str) -> Any:
    """Return options of calls that differ from others in a name, and in clusters.

    XLA puts the name before those of its clusters, so that it must hold no space.
    """
    from tensorflow.core.protobuf import config_pb2

    labelled = config_pb2.ConfigProto.FromString(config)
    name = f"{_PREFIX}{label}".replace(" ", "_")
    labelled.experimental.session_metadata.name = name
    if label == CLUSTERED:
        level = config_pb2.OptimizerOptions.ON_1
        labelled.graph_options.optimizer_options.global_jit_level = level
    return _options(labelled.SerializeToString(deterministic=True))


def _options(config: bytes, **more: str) -> Any:
    """Return options of calls with a serialized ConfigProto."""
    from tensorflow.core.protobuf import config_pb2

    options = importlib.import_module(_CONTEXT).FunctionCallOptions
    return options(config_proto=config_pb2.ConfigProto.FromString(config), **more)


@unless_gone("in_save_context", "functions that scale losses cannot be exported", False)
def is_exporting() -> bool:
    """Return whether functions are being traced for a SavedModel, on this thread.

    TensorFlow traces them again for it.
    """
    module = importlib.import_module("tensorflow.python.saved_model.save_context")
    return bool(module.in_save_context())


(SERVER_START,) = hooks(
    "what other processes have this one compute stays float32",
    "tensorflow.python.training.server_lib:Server.start",
)


def is_server(made: Any) -> bool:
    """Return whether something is a `tf.distribute.Server`."""
    import tensorflow as tf

    return isinstance(made, tf.distribute.Server)


@unless_gone(
    "get_server_def", "what is computed by other processes stays float32", None
)
def connected_cluster() -> Any | None:
    """Return the ClusterDef of the servers that this process has compute, if any."""
    server_def = eager_context().get_server_def()
    return None if server_def is None else server_def.cluster


@unless_gone("_collective_ops_server_def", "workers do not compare their plans", None)
def collective_server() -> Any | None:
    """Return the ServerDef of this process where it trains in step with others."""
    context = eager_context()
    server_def = context._collective_ops_server_def
    return server_def if context.coordination_service is not None else None


def tell_workers(key: str, value: str, *, anew: bool = False) -> None:
    """Send something to all workers that train in step; what was sent before stays.

    Unless it is sent anew.

    Raises:
      tf.errors.OpError: they cannot be reached.
      AttributeError: this TensorFlow has no such means.
    """
    import tensorflow as tf

    context = eager_context()
    if anew:
        context.delete_config_key_value(key)
    with contextlib.suppress(tf.errors.AlreadyExistsError):
        context.set_config_key_value(key, value)


def ask_workers(key: str, seconds: float) -> str | None:
    """Return what a worker has sent, after waiting for it; None where none has.

    Raises:
      tf.errors.OpError: they cannot be reached.
      AttributeError: this TensorFlow has no such means.
    """
    import tensorflow as tf

    context = eager_context()
    try:
        milliseconds = max(1, int(seconds * 1000))
        return str(context.get_config_key_value(key, timeout_in_ms=milliseconds))
    except tf.errors.DeadlineExceededError:
        return None
