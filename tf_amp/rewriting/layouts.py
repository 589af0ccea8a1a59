"""TensorFlow's choice of layouts, asked for once a graph is in 16 bits."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tf_amp._tensorflow_private import graphs as private
from tf_amp.tracing import grappler_preview

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.planning.draft import Layouts

# From these compute capabilities on TensorFlow has the convolutions of a type read
# channels last (generic_layout_optimizer.cc).
_CHANNELS_LAST = {"float16": (7, 0), "bfloat16": (8, 0)}


def layouts_for(low_dtype: str, capability: tuple[int, int] | None) -> Layouts | None:
    """Return what chooses layouts for a type; None where they stay as they are.

    Args:
      low_dtype: "bfloat16" or "float16".
      capability: compute capability of the oldest GPU; None: there is no GPU.
    """
    if capability is None or capability < _CHANNELS_LAST[low_dtype]:
        return None
    return functools.partial(_laid_out, "{}.{}".format(*capability))


def _laid_out(
    architecture: str, graph_def: GraphDef, kept: tuple[str, ...]
) -> GraphDef | None:
    """Return a graph in the layouts that TensorFlow chooses; None where it fails."""
    from tensorflow.core.protobuf.config_pb2 import ConfigProto
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

    cluster = private.cluster_of(architecture)
    if cluster is None:
        return None
    meta_graph = MetaGraphDef(graph_def=grappler_preview.with_bodies(graph_def))
    meta_graph.collection_def["train_op"].node_list.value.extend(kept)
    config = ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers.append("layout")
    options.meta_optimizer_iterations = options.ONE
    options.min_graph_nodes = -1
    return grappler_preview.run_grappler(
        meta_graph, config, cluster, "layouts stay as they are"
    )
