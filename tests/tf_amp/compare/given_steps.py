"""Steps of a program whose times are given, and trials of products for them."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Trial
from tf_amp.compare import own_steps
from tf_amp.compare.alternation import Verdict

FASTER = Verdict(((2.0, 1.0),) * 20)
SLOWER = Verdict(((1.0, 2.0),) * 20)


@dataclasses.dataclass
class Steps:
    """Stands in for steps of a program, whose times are given."""

    begun: int = 0
    waiting: list[own_steps.Decided] = dataclasses.field(default_factory=list)

    def begin(
        self,
        trial: Trial,
        decided: own_steps.Decided,
        learn: own_steps.Profiled | None,
    ) -> bool:
        """Begin a comparison."""
        self.begun += 1
        self.waiting.append(decided)
        return True

    def end(self, compared: Verdict | None) -> None:
        """End the comparison that has begun last."""
        found = own_steps.Steps(compared)
        self.waiting.pop()(compared is FASTER, found)


def product(rows: int, stamp: bytes = b"settings:step:1") -> tf.compat.v1.GraphDef:
    """Return a product whose node has the same name whatever its size."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [rows, 8], name="x")
        w = tf.compat.v1.placeholder(tf.float32, [8, 8], name="w")
        tf.identity(tf.matmul(x, w, name="product"), name="fetch")
    graph_def = graph.as_graph_def()
    for node in graph_def.node:
        node.attr["_tf_amp"].s = stamp
    return graph_def


def with_leftover(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Return a graph as if Grappler had optimized it once more."""
    altered = tf.compat.v1.GraphDef.FromString(graph_def.SerializeToString())
    altered.node.add(name="left/over", op="NoOp")
    return altered


def trial_of(graph_def: tf.compat.v1.GraphDef, low_dtype: str = "bfloat16") -> Trial:
    """Return a trial of a graph called `step`."""
    after = with_leftover(graph_def)
    after.node[-1].op = "Placeholder"
    after.node[-1].attr["dtype"].type = tf.as_dtype(low_dtype).as_datatype_enum
    return Trial(
        before=graph_def,
        after=after,
        item=Item(fetch=("fetch",)),
        shapes=shapes_from_graph_def(graph_def),
        seconds_before=1.0,
        seconds_after=0.5,
        name="step",
    )
