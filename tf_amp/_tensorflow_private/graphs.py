"""What of TensorFlow's private parts optimizes graphs."""

from __future__ import annotations

import functools
import importlib
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
