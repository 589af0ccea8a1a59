"""Which operations leave the range of the 16-bit type on the user's own data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph import Item
    from tf_amp.converting.job import Job

Reasons = tuple[tuple[str, str], ...]


def float32_nodes(job: Job) -> Reasons:
    """Name the nodes of a SavedModel that must stay float32, each with the reason.

    Raises:
      ConfigError: the model has no signature to feed.
      DataUnfit: the data does not fit the inputs of any signature.
    """
    return ()


def float32_nodes_of_graph(job: Job, graph_def: GraphDef, item: Item) -> Reasons:
    return ()
