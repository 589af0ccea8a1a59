"""TensorFlow's private names around tracing, gradients and the replay of a step.

Also of what surrounds an operation in its graph: old branches and loops are parts of
one graph; a function orders what is done in it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from grappler_pass.graph.walks import reached
from tf_amp._tensorflow_private import eager_context, hooks, unless_gone, warn_once

(REPLICA_THREAD,) = hooks(
    "scopes around a MirroredStrategy's step do not hold in its replicas",
    "tensorflow.python.distribute.mirrored_run:_MirroredReplicaThread.__init__",
)
_BY_NAME = "gradients of excluded operations are known by their names alone"
WALK_GRADIENT, RECORD_GRADIENT, RECORD_CLOSURE = hooks(
    _BY_NAME,
    "tensorflow.python.ops.gradients_util:_MaybeCompile",
    "tensorflow.python.eager.execute:record_gradient",
    "tensorflow.python.eager.record:record_operation",
)
(REPLAY_GRADIENT,) = hooks(
    _BY_NAME,
    "tensorflow.python.eager.backprop:_gradient_function",
    register=("tensorflow.python.pywrap_tfe", "TFE_Py_RegisterGradientFunction"),
)


# What calls the Python function that becomes a graph; it is on the stack meanwhile.
TRACING_METHOD = "func_graph_from_py_func"

_COMPILED = "models compiled in a scope need the scope around fit as well"
_TF_KERAS_MODEL = "tf_keras.src.engine.training:Model"
COMPILE_MODEL = hooks(
    _COMPILED,
    "keras.src.trainers.trainer:Trainer.compile",
    f"{_TF_KERAS_MODEL}.compile",
)
_RUNNING = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
)
RUN_MODEL = hooks(
    _COMPILED,
    *(f"keras.src.backend.tensorflow.trainer:TensorFlowTrainer.{m}" for m in _RUNNING),
    *(f"{_TF_KERAS_MODEL}.{method}" for method in _RUNNING),
    of_callbacks=True,
)
CALLBACK_LISTS = hooks(
    "callbacks know nothing of one another",
    "keras.src.callbacks.callback_list:CallbackList.set_model",
    "tf_keras.src.callbacks:CallbackList.set_model",
    of_callbacks=True,
)
CALL_LAYER = hooks(
    "layers in exclude= are rewritten, and only patterns keep float32",
    "keras.src.layers.layer:Layer.__call__",
    "tf_keras.src.engine.base_layer:Layer.__call__",
)


def traced_graph() -> Any | None:
    """Return the graph that operations are being added to; None while eager."""
    if "tensorflow" not in sys.modules:
        return None
    import tensorflow as tf

    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def outwards(graph: Any) -> Iterator[Any]:
    """Yield a graph, the one that it is traced in, and so on; nothing of None."""
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def kept_with(graph: Any, name: str, make: Callable[[], Any] = dict) -> Any:
    """Return what lives as long as a graph, made if there is nothing of the name."""
    if not hasattr(graph, name):
        setattr(graph, name, make())
    return getattr(graph, name)


def operations_behind(operation: Any) -> Iterator[Any]:
    """Yield an operation of a graph, and all that it depends on."""
    return reached(
        [operation],
        lambda op: [*(tensor.op for tensor in op.inputs), *op.control_inputs],
    )


def captured(tensor: Any) -> Any:
    """Return the tensor of the outer graph that a placeholder stands for, if any."""
    if tensor.op.type != "Placeholder":
        return None
    captures = getattr(tensor.graph, "captures", ())
    return next((outer for outer, inner in captures if inner is tensor), None)


def captured_from(tensor: Any) -> Any:
    """Return what a tensor of a function stands for, outside of all functions."""
    while not hasattr(tensor, "numpy"):
        outer = captured(tensor)
        if outer is None:
            break
        tensor = outer
    return tensor


def attribute_of(operation: Any, name: str, default: Any = None) -> Any:
    """Return the value of an operation's attribute; `default` where it has none."""
    try:
        return operation.get_attr(name)
    except ValueError:
        return default


def put_attribute(operation: Any, name: str, **value: Any) -> None:
    """Write an attribute on an operation; `value` is the field of an AttrValue."""
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    operation._set_attr(name, AttrValue(**value))


@unless_gone("get_resource_handle_data", "variables are explained without shapes", ())
def handle_contents(tensor: Any) -> tuple[Any, ...]:
    """Return shape and dtype protos of what a resource handle refers to, if known."""
    module = importlib.import_module("tensorflow.python.ops.handle_data_util")
    is_eager = hasattr(tensor, "numpy")
    data = tensor._handle_data if is_eager else module.get_resource_handle_data(tensor)
    return tuple(data.shape_and_type) if data and data.is_set else ()


def variable_value(handle: Any, contents: Any) -> Any:
    """Return what the variable behind an eager handle holds now, not copied."""
    import tensorflow as tf

    with importlib.import_module("tensorflow.python.eager.context").eager_mode():
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=contents.dtype)


def copied_variable(handle: Any) -> Any:
    """Return another variable that holds what the one behind an eager handle does.

    Raises:
      ValueError: it is the handle of something else.
    """
    import tensorflow as tf

    contents = handle_contents(handle)
    if len(contents) != 1:
        raise ValueError("it is given something that is neither tensor nor variable")
    with tf.device(handle.device):
        value = variable_value(handle, contents[0])
        shape = tf.TensorShape(contents[0].shape)
        return tf.Variable(value, trainable=False, shape=shape)


def keras_paths() -> dict[int, str]:
    """Return the paths of Keras 3's variables, by identity of TensorFlow's variables.

    Nothing leads from one to the other, so that all objects are looked at.
    """
    kind = getattr(sys.modules.get("keras"), "Variable", None)
    alive = [each for each in gc.get_objects() if kind in type(each).__mro__]
    return {id(getattr(each, "_value", None)): each.path for each in alive}


@unless_gone("clear_kernel_cache", "functions that overflow are not run again", None)
def forget_kernels() -> None:
    """Have every function optimized again at its next call."""
    eager_context().clear_kernel_cache()


@unless_gone(
    "_get_control_flow_context", "gradients taken in old branches stop training", ()
)
def frames_of(operation: Any) -> tuple[Any, ...]:
    """Return the branches and loops that hold an operation or graph, innermost first.

    Those that hold a graph are the ones that are being built.
    """
    frames, frame = [], operation._get_control_flow_context()
    while frame is not None:
        frames.append(frame)
        frame = frame.outer_context
    return tuple(f for f in frames if f.IsCondContext() or f.IsWhileContext())


def true_unless_taken(flag: Any, branch: Any) -> Any | None:
    """Return a flag of a branch as it is around it: True where it is not taken.

    None of what is in a loop.
    """
    import tensorflow as tf

    if not branch.IsCondContext():
        return None
    graph, outer = flag.graph, branch.outer_context
    with contextlib.ExitStack() as around:
        around.enter_context(graph.as_default())
        around.enter_context(tf.control_dependencies(None))
        if outer is not None:
            outer.Enter()
            around.callback(outer.Exit)
        both = tf.raw_ops.Switch(data=tf.constant(True), pred=branch.pred)
        return tf.raw_ops.Merge(inputs=[flag, both[1 - branch.branch]]).output


def can_order_by_hand(operation: Any) -> bool:
    """Return whether others can be put before and after an operation."""
    graph = operation.graph
    if not graph.building_function:
        # Frames of old loops admit nothing from outside.
        frame = getattr(operation, "_get_control_flow_context", lambda: None)()
        return frame is None
    # What is wrapped in a function without any order has no manager.
    manager = getattr(graph, "experimental_acd_manager", graph)
    if manager is None or hasattr(manager, "run_independently"):
        return True
    warn_once(
        "experimental_acd_manager",
        "steps whose gradients overflow within a nested function may be taken",
    )
    return False


def order_by_hand(operation: Any) -> None:
    """Let an operation of a function wait for its own inputs alone."""
    manager = getattr(operation.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(operation)
