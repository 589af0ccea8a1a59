"""The private hooks of gradients, optimizers and replicas, and of placement.

Keras may be imported after mixed precision was enabled, or not at all.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from grappler_pass.graph.op_table import REF_VARIABLE_OPS
from tf_amp._tensorflow_private import (
    Method,
    hooks,
    stand_in_for,
    unless_gone,
    warn_once,
)
from tf_amp._tensorflow_private.functions import is_traced_for_xla
from tf_amp._tensorflow_private.tracing import traced_graph

_UNSCALED = "losses are not scaled for the gradients it computes"
_BACKPROP = "tensorflow.python.eager.backprop:GradientTape"
_TF_KERAS_LOSS_SCALE = "tf_keras.src.mixed_precision.loss_scale_optimizer"
# A copy of Keras 2 that TensorFlow keeps for itself, and some programs use.
_INNER_KERAS = "tensorflow.python.keras"

TAPE_GRADIENT, GRAPH_GRADIENTS, VECTORIZED_LOOP = hooks(
    _UNSCALED,
    f"{_BACKPROP}.gradient",
    "tensorflow.python.ops.gradients_impl:gradients_util",
    "tensorflow.python.ops.parallel_for.control_flow_ops:pfor",
)
(TAPE_RESET,) = hooks("it counts with what was recorded before", f"{_BACKPROP}.reset")
(GRADIENT_LOOKUP,) = hooks(
    "losses outside of functions that a program scales itself are scaled twice",
    "tensorflow.python.framework.registry:Registry.lookup",
)
(FORWARD_GRADIENT,) = hooks(
    "each operation that a ForwardAccumulator follows counts as a call for gradients",
    "tensorflow.python.eager.forwardprop:_jvp_helper",
)
(PYTHON_FUNCTION,) = hooks(
    "gradients of Python functions are scaled twice",
    "tensorflow.python.ops.script_ops:_internal_py_func",
)
# All operations go through these: of graphs, and of eager mode.
ADD_OPERATION, EXECUTE_EAGERLY = hooks(
    "what a program writes of gradients that overflow is written",
    "tensorflow.python.framework.op_def_library:_apply_op_helper",
    "tensorflow.python.pywrap_tfe:TFE_Py_FastPathExecute",
)
(
    TAPE_ENTER,
    KERAS_APPLY,
    KERAS_MULTI_APPLY,
    TF_KERAS_APPLY,
    TF_KERAS_LEGACY_APPLY,
    INNER_KERAS_APPLY,
    V1_APPLY,
) = hooks(
    "steps whose gradients overflow are taken, not skipped",
    f"{_BACKPROP}.__enter__",
    "keras.src.optimizers.base_optimizer:BaseOptimizer.apply",
    "keras.src.optimizers.multi_optimizer:MultiOptimizer.apply",
    "tf_keras.src.optimizers.optimizer:Optimizer.apply_gradients",
    "tf_keras.src.optimizers.legacy.optimizer_v2:OptimizerV2.apply_gradients",
    f"{_INNER_KERAS}.optimizer_v2.optimizer_v2:OptimizerV2.apply_gradients",
    "tensorflow.python.training.optimizer:Optimizer.apply_gradients",
)
_SYNC_REPLICAS = "tensorflow.python.training.sync_replicas_optimizer"
SYNC_APPLY, SYNC_PARTS = hooks(
    "workers whose gradients overflow push them to a SyncReplicasOptimizer",
    f"{_SYNC_REPLICAS}:SyncReplicasOptimizer.apply_gradients",
    f"{_SYNC_REPLICAS}:data_flow_ops",
)
_ONE_BY_ONE = "gradients are exchanged in float32, as TensorFlow does it"

(KERAS_ALL_REDUCE,) = hooks(
    f"of Keras 3's optimizers, {_ONE_BY_ONE}",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer._all_reduce_sum_gradients",
)
(BATCH_NORMALIZATION,) = hooks(
    "it takes several passes over its inputs in training",
    "keras.src.layers.normalization.batch_normalization:BatchNormalization.call",
)
(EMBEDDING,) = hooks(
    "tables that are trained row by row are copied in each step",
    "keras.src.layers.core.embedding:Embedding.call",
)
(GELU,) = hooks(
    "steps with it keep three tensors for its gradient instead of one",
    "tensorflow._api.v2.nn:gelu",
)
# Of the classes of Keras 3 whose updates a kernel can take.
UPDATES = hooks(
    "its updates take a pass over the weights for each operation",
    *(
        f"keras.src.optimizers.{name.lower()}:{name}.update_step"
        for name in ("SGD", "Adam", "Adagrad", "Adamax", "RMSprop", "Adadelta", "Ftrl")
    ),
)
USER_SCALING = hooks(
    "losses that this scales already are scaled twice",
    "keras.src.optimizers.base_optimizer:BaseOptimizer.scale_loss",
    "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer.scale_loss",
    f"{_TF_KERAS_LOSS_SCALE}:LossScaleOptimizer.get_scaled_loss",
    f"{_TF_KERAS_LOSS_SCALE}:LossScaleOptimizerV3.get_scaled_loss",
    f"{_INNER_KERAS}.mixed_precision.loss_scale_optimizer:LossScaleOptimizer.get_scaled_loss",
    "tensorflow.python.training.experimental.loss_scale_optimizer:"
    "MixedPrecisionLossScaleOptimizer._scale_loss",
)


def has_own_moments(layer: Any) -> bool:
    """Return whether Keras' BatchNormalization computes moments as it ships."""
    owner = getattr(
        sys.modules.get(BATCH_NORMALIZATION.module), BATCH_NORMALIZATION.owner, None
    )
    # The name depends on the release.
    names = ("_moments", "_calculate_mean_and_var")
    own = [(getattr(type(layer), n, None), getattr(owner, n, None)) for n in names]
    return all(mine is theirs for mine, theirs in own)


@unless_gone("could_possibly_record", EMBEDDING.without, False)
def is_recording() -> bool:
    """Return whether a tape records what is computed here, for gradients."""
    record = importlib.import_module("tensorflow.python.eager.record")
    return bool(record.could_possibly_record())


def with_gradients_function(module: Any, wrap: Callable[[Method], Method]) -> Any:
    """Return a stand-in for a module whose function for `tf.gradients` is wrapped.

    It is the module itself where that function is gone.
    """
    compute = getattr(module, "_GradientsHelper", None)
    if compute is None:
        warn_once("_GradientsHelper", _UNSCALED)
        return module
    return stand_in_for(module, _GradientsHelper=wrap(compute))


def differentiated_parts(values: list[Any]) -> list[Any]:
    """Return what TensorFlow differentiates of values: of composite ones, their parts.

    Raises:
      ValueError: TensorFlow does not differentiate one of them.
    """
    name = "tensorflow.python.framework.composite_tensor_gradient"
    try:
        parts = importlib.import_module(name).get_flat_tensors_for_gradients
    except (ImportError, AttributeError):
        warn_once("get_flat_tensors_for_gradients", _UNSCALED)
        return values
    return list(parts(values))


@unless_gone("GradientTape._tape", "tapes count each time they are entered", False)
def holds_recording(tape: Any) -> bool:
    """Return whether a tape that is entered would go on with what it has recorded."""
    return tape._tape is not None


def in_function() -> bool:
    """Return whether a function, or a part of one, is being traced."""
    return bool(tf.compat.v1.get_default_graph().building_function)


def in_xla_context() -> bool:
    """Return whether the function being traced will be compiled by XLA."""
    graph = traced_graph()
    return graph is not None and is_traced_for_xla(graph)


def runs_what_is_written() -> bool:
    """Say whether assignments run here by themselves; not in parts of a `tf.Graph`."""
    graph = tf.compat.v1.get_default_graph()
    return bool(getattr(graph, "_add_control_dependencies", False))


def is_replica_thread() -> bool:
    """Return whether this code is traced or run once for each replica, in a thread.

    Variables of all replicas are then written where the threads meet.
    """
    return (
        _graph_of_replica() is not None and not tf.distribute.in_cross_replica_context()
    )


def can_merge() -> bool:
    """Return whether replicas can agree here.

    Those of a MirroredStrategy cannot within a function or a branch that is being
    traced in each of them.
    """
    if not is_replica_thread() or tf.executing_eagerly():
        return True
    return _graph_of_replica() is tf.compat.v1.get_default_graph()


def _graph_of_replica() -> Any:
    return getattr(threading.current_thread(), "graph", None)


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as AutoGraph would convert it, were it called from here."""
    try:
        autograph = tf.__internal__.autograph
        status = autograph.control_status_ctx()
        result: Callable[..., Any] = autograph.tf_convert(function, status)
        return result
    except AttributeError:
        warn_once("tf_convert", "bodies of vectorized loops are not converted")
        return function


def as_one_operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that stays one operation where it is called.

    No tape follows what it computes.
    """
    alone = tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )

    def call_alone(*args: Any) -> Any:
        with _not_recording():
            return alone(*args)

    return call_alone


@unless_gone(
    "stop_recording", "nested gradients take longer to trace", contextlib.nullcontext()
)
def _not_recording() -> contextlib.AbstractContextManager[None]:
    record: Any = importlib.import_module("tensorflow.python.eager.record")
    return record.stop_recording()  # type: ignore[no-any-return]


def with_slope(
    compute: Callable[[Any], Any], source: Any, slope: Callable[[Any], Any]
) -> Any:
    """Return what is computed of a tensor, with a gradient of its own for tapes.

    `slope` returns the gradient of the source, given that of the result.
    """
    try:
        record: Any = importlib.import_module("tensorflow.python.eager.record")
        stop, tell = record.stop_recording, record.record_operation
        if not record.could_possibly_record():
            return compute(source)
    except (ImportError, AttributeError):
        warn_once("record_operation", "overflows of inner gradients may be missed")
        return compute(source)
    with stop():
        result = compute(source)
    tell("Identity", [result], [source], lambda upstream: [slope(upstream)])
    return result


@contextlib.contextmanager
def branching_on_references() -> Iterator[None]:
    """Let branches of a `tf.Graph` update variables that are not resources.

    Only branches of the first kind can: they are made where the graph holds any such
    variable, whatever is the default of the program.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    operations = () if graph is None else graph.get_operations()
    holds_references = any(op.type in REF_VARIABLE_OPS for op in operations)
    if graph is None or graph.building_function or not holds_references:
        yield
        return
    module = importlib.import_module("tensorflow.python.ops.control_flow_util")
    before = getattr(module, "ENABLE_CONTROL_FLOW_V2", None)
    if before is None:
        warn_once(
            "ENABLE_CONTROL_FLOW_V2",
            "steps that update reference variables cannot be skipped",
        )
    try:
        module.__dict__["ENABLE_CONTROL_FLOW_V2"] = False
        yield
    finally:
        module.__dict__["ENABLE_CONTROL_FLOW_V2"] = before


@unless_gone(
    "_remove_all_control_inputs",
    "replica losses of one step change the loss scale one by one",
    None,
)
def wait_instead(operation: Any, old: Iterable[Any], new: Iterable[Any]) -> None:
    """Let an operation wait for others than it did; both are operations or tensors."""
    remove, add = operation._remove_all_control_inputs, operation._add_control_inputs
    gone = {getattr(value, "op", value) for value in old}
    kept = [other for other in operation.control_inputs if other not in gone]
    remove()
    add([*kept, *(getattr(value, "op", value) for value in new)])


_KEY = "_var_key"
_REDUCE = {
    "keras": "_all_reduce_sum_gradients",
    "tf_keras": "aggregate_gradients",
}
_LOST_KEY = (
    "variables that an offloaded optimizer was set to exclude from weight decay are "
    "decayed"
)
_LOST_REDUCE = "an offloaded optimizer begins its update when all gradients are there"

Methods = dict[str, Callable[[Any, Any], Any]]


def has_slots(optimizer: Any) -> bool:
    """Return whether an optimizer of Keras 3 or tf_keras was built."""
    return bool(
        getattr(optimizer, "built", False) or getattr(optimizer, "_built", False)
    )


def offloading_methods(base: type, original_of: Callable[[Any, Any], Any]) -> Methods:
    """Return methods, by name, of a class of optimizers that updates copies.

    `original_of` returns what an optimizer's variable is a copy of, or itself.
    """
    methods: Methods = {}
    inherited_key = getattr(base, _KEY, None)
    if inherited_key is None:
        warn_once(f"{base.__name__}.{_KEY}", _LOST_KEY)
    else:
        methods[_KEY] = lambda optimizer, variable: inherited_key(
            optimizer, original_of(optimizer, variable)
        )
    # Gradients are kept separate. Without a strategy there is nothing to add up, but
    # Keras passes all gradients through one op, behind which no update begins before
    # the last is there.
    for package, name in _REDUCE.items():
        inherited = getattr(base, name, None)
        if inherited is None:
            continue
        # A user's own way to add gradients up stays.
        if inherited.__module__.partition(".")[0] == package:
            methods[name] = lambda optimizer, pairs: pairs
        return methods
    warn_once(f"{base.__name__}.{_REDUCE['keras']}", _LOST_REDUCE)
    return methods


def local_step_of(optimizer: Any) -> Any | None:
    """Return the variable with the step that a worker computes gradients for."""
    return getattr(optimizer, "_local_step", None)


_DISTRIBUTE = "tensorflow.python.distribute"


def mirrored(values: tuple[Any, ...]) -> Any:
    """Return one value per replica, all of them equal, as TensorFlow groups them."""
    utilities = importlib.import_module(f"{_DISTRIBUTE}.distribute_utils")
    classes = importlib.import_module(f"{_DISTRIBUTE}.values")
    return utilities.regroup(values, wrap_class=classes.Mirrored)


@unless_gone("distribute_utils.regroup", _ONE_BY_ONE, False)
def can_mirror() -> bool:
    """Return whether results can be handed back; if not, a warning has been given."""
    importlib.import_module(f"{_DISTRIBUTE}.distribute_utils").regroup  # noqa: B018
    importlib.import_module(f"{_DISTRIBUTE}.values").Mirrored  # noqa: B018
    return True


def is_replicated(variable: Any) -> bool:
    """Return whether a variable is one of a strategy's, or a replica's part of one."""
    if hasattr(variable, "values"):
        return True
    held = (variable, getattr(variable, "handle", None))
    return any(hasattr(each, "_distributed_container") for each in held)


_APPLYING = (
    KERAS_APPLY,
    TF_KERAS_APPLY,
    TF_KERAS_LEGACY_APPLY,
    INNER_KERAS_APPLY,
    V1_APPLY,
)


def optimizer_classes() -> tuple[type, ...]:
    """Return the base classes of all optimizers that are loaded."""
    modules = ((sys.modules.get(hook.module), hook.owner) for hook in _APPLYING)
    found = (getattr(module, owner, None) for module, owner in modules if module)
    return tuple(cls for cls in found if cls is not None)
