"""The private names of what optimizes graphs, and of what saves and restores."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_amp._tensorflow_private import eager_context, hooks, unless_gone, warn_once

HOST = "/job:localhost/replica:0/task:0"
_KINDS = ("CPU", "GPU")


@functools.cache
def grappler() -> Any | None:
    """Return the module that runs Grappler on a graph; None where gone."""
    try:
        module = importlib.import_module("tensorflow.python.grappler.tf_optimizer")
        return module if hasattr(module, "OptimizeGraph") else None
    except ImportError:
        return None


def cluster_of(architecture: str | None = None) -> Any | None:
    """Return a cluster of one CPU and one GPU, or None where TensorFlow has none.

    The GPU need not exist; its compute capability is such as "7.0", None for no GPU. Of
    clusters of devices that exist, a process can have but one at a time.
    """
    try:
        module = importlib.import_module("tensorflow.python.grappler.cluster")
        from tensorflow.core.protobuf.device_properties_pb2 import NamedDevice

        kinds = _KINDS if architecture else _KINDS[:1]
        found = [NamedDevice(name=f"{HOST}/device:{kind}:0") for kind in kinds]
        for device, kind in zip(found, kinds, strict=True):
            device.properties.type = kind
        if architecture:
            found[-1].properties.environment["architecture"] = architecture
        return module.Cluster(devices=found)
    except (ImportError, AttributeError, TypeError):
        warn_once("Cluster", "graphs for another GPU are optimized as for this device")
        return None


def multiprocessors() -> int:
    """Return how many the first GPU has; 0 where TensorFlow does not say.

    Nor does it while the process has a cluster of its devices already.
    """
    from tensorflow.errors import UnavailableError

    try:
        module = importlib.import_module("tensorflow.python.grappler.cluster")
        found = module.Cluster(disable_detailed_stats=True).ListDevices()
        gpus = (each.properties for each in found if each.properties.type == "GPU")
        return next((int(properties.num_cores) for properties in gpus), 0)
    except (ImportError, AttributeError, TypeError, RuntimeError, UnavailableError):
        return 0


def grappler_options() -> Any:
    """Return the ConfigProto whose options the program's functions are run with."""
    from tensorflow.core.protobuf.config_pb2 import ConfigProto

    config = ConfigProto()
    try:
        options = eager_context().function_call_options.config_proto_serialized
        config.graph_options.CopyFrom(ConfigProto.FromString(options).graph_options)
    except (ImportError, AttributeError):
        warn_once("function_call_options", "options set for Grappler are not used")
    return config


@unless_gone(
    "get_function_def", "graphs with calls of functions are not verified", None
)
def function_named(name: str) -> Any | None:
    """Return the FunctionDef that the runtime has under a name; None where unknown."""
    context = eager_context()
    return context.get_function_def(name) if context.has_function(name) else None


BUILD_META_GRAPH, CREATE_META_GRAPH, SAVE_BUILDER = hooks(
    "exported graphs keep marks that other processes do not need",
    "tensorflow.python.saved_model.save:_build_meta_graph",
    "tensorflow.python.framework.meta_graph:create_meta_graph_def",
    "tensorflow.python.saved_model.builder_impl:_SavedModelBuilder.save",
)
_UNTRACKED = "functions that were traced while losses are scaled cannot be exported"
(SET_SIGNATURE,) = hooks(
    _UNTRACKED, "tensorflow.python.saved_model.save:_AugmentedGraphView.set_signature"
)


def _converter(of_tensorflow: str = "tensorflow") -> str:
    """Return where this TensorFlow converts to TFLite: 2.16 does so elsewhere.

    It is not imported for that.
    """
    spec = importlib.util.find_spec(of_tensorflow)
    folders = [] if spec is None else spec.submodule_search_locations or []
    old = "lite/python/wrap_toco.py"
    if any((Path(folder) / old).exists() for folder in folders):
        return "tensorflow.lite.python.wrap_toco:wrapped_toco_convert"
    return "tensorflow.compiler.mlir.lite.python.wrap_converter:wrapped_convert"


(CONVERT_TO_TFLITE,) = hooks(
    "each conversion to TFLite waits 20 seconds for nothing", _converter()
)


def built_graph(result: Any) -> Any:
    """Return the GraphDef in what BUILD_META_GRAPH returns."""
    return result[0].graph_def


@unless_gone("_breadth_first_traversal", _UNTRACKED, [])
def captured_inputs(view: Any) -> list[Any]:
    """Return what the functions capture that are about to be exported.

    Args:
      view: of the objects to be exported, whose SET_SIGNATURE was called.
    """
    objects, _ = view._breadth_first_traversal()
    functions = (one for one in objects if hasattr(one, "captured_inputs"))
    return [tensor for function in functions for tensor in function.captured_inputs]


@unless_gone("_children_cache", _UNTRACKED, None)
def add_child(view: Any, name: str, child: Any) -> None:
    """Let an object be exported as if it were an attribute of the root."""
    view._children_cache[view.root][name] = child


def builder_graphs(builder: Any) -> list[Any]:
    """Return the GraphDefs that a builder of SavedModels is about to write."""
    return [graph.graph_def for graph in builder._saved_model.meta_graphs]


_NOT_KEPT = "the loss scale is not kept in checkpoints"
_CHECKPOINT = "tensorflow.python.checkpoint.checkpoint"
_SAVER = "tensorflow.python.training.saver"

GATHER_TENSORS, SAVE_OBJECTS, RESTORE_OBJECTS, BULK_RESTORE = hooks(
    _NOT_KEPT,
    f"{_CHECKPOINT}:TrackableSaver._gather_serialized_tensors",
    f"{_CHECKPOINT}:TrackableSaver.save",
    f"{_CHECKPOINT}:TrackableSaver.restore",
    f"{_SAVER}:BulkSaverBuilder.bulk_restore",
)
(SAVE_NAMES,) = hooks("plans are not kept beside checkpoints", f"{_SAVER}:Saver.save")
(RESTORE_NAMES,) = hooks(
    "checkpoints without a loss scale cannot be restored", f"{_SAVER}:Saver.restore"
)
(RESTORE_OBJECTS_BY_NAMES,) = hooks(
    "a Saver cannot restore what a tf.train.Checkpoint has written",
    f"{_SAVER}:saver_from_object_based_checkpoint",
)
(REMOVE_CHECKPOINT,) = hooks(
    "plans stay when the checkpoint beside them is removed",
    "tensorflow.python.checkpoint.checkpoint_management:remove_checkpoint",
)
(REPORT_UNINITIALIZED,) = hooks(
    "a MonitoredSession waits for the loss scale to be initialized",
    "tensorflow.python.ops.variables:report_uninitialized_variables",
)

_BESIDE = "the loss scale is not kept beside the files that Keras saves"
_TF_KERAS = "tf_keras.src.saving"
SAVE_KERAS = hooks(
    _BESIDE,
    "keras.src.saving.saving_lib:save_model",
    "keras.src.saving.saving_lib:save_weights_only",
    "keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5",
    f"{_TF_KERAS}.saving_lib:save_model",
    f"{_TF_KERAS}.saving_lib:save_weights_only",
    f"{_TF_KERAS}.legacy.hdf5_format:save_model_to_hdf5",
    f"{_TF_KERAS}.legacy.saved_model.save:save",
)
LOAD_KERAS_WEIGHTS = hooks(
    _BESIDE,
    "keras.src.saving.saving_lib:load_weights_only",
    f"{_TF_KERAS}.saving_lib:load_weights_only",
)
LOAD_KERAS_MODEL = hooks(
    _BESIDE,
    "keras.src.saving.saving_lib:load_model",
    "keras.src.legacy.saving.legacy_h5_format:load_model_from_hdf5",
    f"{_TF_KERAS}.saving_lib:load_model",
    f"{_TF_KERAS}.legacy.hdf5_format:load_model_from_hdf5",
    f"{_TF_KERAS}.legacy.saved_model.load:load",
)


@unless_gone("TrackableSaver._graph_view", _NOT_KEPT, ())
def trackables_of(saver: Any) -> Sequence[Any]:
    """Return all objects that a TrackableSaver saves."""
    found: Sequence[Any] = saver._graph_view.descendants()
    return found


def session_for_saving() -> Any:
    """Return the Session that a checkpoint would be saved in; None without any."""
    try:
        return importlib.import_module(_CHECKPOINT).get_session()
    except (ImportError, AttributeError):
        import tensorflow as tf

        return tf.compat.v1.get_default_session()


@unless_gone("CheckpointLoadStatus._checkpoint", _NOT_KEPT, None)
def add_restore_ops(status: Any, operations: Sequence[Any]) -> None:
    """Have what a load status runs in a Session do some more."""
    status._checkpoint.restore_ops.extend(operations)
