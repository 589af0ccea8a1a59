"""Graphs of branches, run as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

v1 = tf.compat.v1


def outcome(graph_def: GraphDef, feed: Mapping[str, object] | None = None) -> Any:
    """Return what the node `out` gives where Grappler changes nothing."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        config = v1.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with v1.Session(graph=graph, config=config) as session:
            return session.run("out:0", feed)
