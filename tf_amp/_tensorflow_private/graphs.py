"""What of TensorFlow's private parts optimizes and imports graphs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from tf_amp._tensorflow_private import eager_context, unless_gone, warn_once

HOST = "/job:localhost/replica:0/task:0"
_KINDS = ("CPU", "GPU")


@functools.cache
def grappler() -> Any | None:
    """Return the module that runs Grappler on a graph at hand; None where gone."""
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


def import_operations(
    graph: Any, graph_def: Any, prefix: str, names: Sequence[str]
) -> list[Any]:
    """Import a GraphDef into a graph that is only to be run; return a few operations.

    No Python object is made for the other operations, which takes far longer than the
    import itself.

    Raises:
      ValueError: TensorFlow cannot import it.
      tf.errors.OpError: the same.
    """
    try:
        importing = _bare_importer()
    except (ImportError, AttributeError):
        warn_once("GraphImportGraphDefWithResults", "sandboxes take longer to prepare")
        import tensorflow as tf

        with graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name=prefix)
        return [graph.get_operation_by_name(f"{prefix}/{name}") for name in names]
    return importing(graph, graph_def.SerializeToString(), prefix, names)


@functools.cache
def _bare_importer() -> Callable[[Any, bytes, str, Sequence[str]], list[Any]]:
    """Return what imports through the C API alone.

    Raises:
      AttributeError, ImportError: this TensorFlow has another C API.
    """
    c_api = importlib.import_module("tensorflow.python.client.pywrap_tf_session")
    c_api_util = importlib.import_module("tensorflow.python.framework.c_api_util")
    make = importlib.import_module("tensorflow.python.framework.ops").Operation
    make = make._from_c_op
    new_options = c_api_util.ScopedTFImportGraphDefOptions
    new_results = c_api_util.ScopedTFImportGraphDefResults
    set_prefix = c_api.TF_ImportGraphDefOptionsSetPrefix
    add_return = c_api.TF_ImportGraphDefOptionsAddReturnOperation
    add_graph_def = c_api.TF_GraphImportGraphDefWithResults
    returned = c_api.TF_ImportGraphDefResultsReturnOperations
    new_buffer, delete = c_api.TF_NewBufferFromString, c_api.TF_DeleteBuffer

    def bare_import(
        graph: Any, serialized: bytes, prefix: str, names: Sequence[str]
    ) -> list[Any]:
        scoped_options = new_options()
        set_prefix(scoped_options.options, prefix)
        for name in names:
            add_return(scoped_options.options, name)
        buffer = new_buffer(serialized)
        try:
            with graph._c_graph.get() as c_graph:
                found = add_graph_def(c_graph, buffer, scoped_options.options)
        finally:
            delete(buffer)
        results = new_results(found)
        return [make(c_op, graph) for c_op in returned(results.results)]

    return bare_import
