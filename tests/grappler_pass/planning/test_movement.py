"""On which side of data movement the casts are where a level forces 16 bits.

`Exp` is denied in float16, so that there is a cast between it and the product.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.plan import Cause
from tests.rewriters import rewritten_by, settings_of
from tests.soundness import assert_sound

Move = Callable[[tf.Tensor], tf.Tensor]

# Each with the shape that it is given.
SHRINKING: dict[str, tuple[Move, list[int]]] = {
    "Slice": (lambda x: tf.slice(x, [0, 0], [512, 64]), [65536, 64]),
    "StridedSlice": (lambda x: x[::128], [65536, 64]),
    "GatherV2": (lambda x: tf.gather(x, [3, 1, 2]), [65536, 64]),
}
GROWING: dict[str, tuple[Move, list[int]]] = {
    "Tile": (lambda x: tf.tile(x, [128, 1]), [512, 64]),
    "BroadcastTo": (lambda x: tf.broadcast_to(x, [65536, 64]), [1, 64]),
    "Pad": (lambda x: tf.pad(x, [[0, 65024], [0, 0]]), [512, 64]),
}
NEUTRAL: dict[str, tuple[Move, list[int]]] = {
    "Transpose": (tf.transpose, [64, 65536]),
    "Reshape": (lambda x: tf.reshape(x, [-1, 64]), [512, 128, 64]),
    "ReverseV2": (lambda x: tf.reverse(x, [0]), [65536, 64]),
}
ALL = SHRINKING | GROWING | NEUTRAL


def weights() -> tf.Tensor:
    return tf.compat.v1.placeholder(tf.float32, [64, 64], "w")


def into_product(x: tf.Tensor, move: Move) -> tf.Tensor:
    return tf.matmul(move(tf.exp(x)), weights())


def out_of_product(x: tf.Tensor, move: Move) -> tf.Tensor:
    """Read the moved result of a product; both may be of any rank."""
    product = tf.matmul(tf.reshape(x, [-1, 64]), weights())
    return tf.exp(move(tf.reshape(product, x.shape)))


def graph_of(op: str, build: Callable[[tf.Tensor, Move], tf.Tensor]) -> GraphDef:
    move, shape = ALL[op]
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, shape, "x")
        tf.identity(build(x, move), "fetch")
    return graph.as_graph_def()


def rewritten(graph_def: GraphDef, level: str) -> Rewrite:
    item = Item(fetch=("fetch",))
    models = {"CPU": CostModel(DeviceProfile.load("v100"))}
    settings = settings_of("float16", level, models=models)
    assert_sound(graph_def, lambda g: rewritten_by(g, item, settings).graph_def, item)
    return rewritten_by(graph_def, item, settings)


def is_low(rewrite: Rewrite, op: str) -> bool:
    assert rewrite.plan is not None
    rows = [row for row in rewrite.plan.decisions if row.op == op]
    (found,) = {row.is_low for row in rows}
    assert found or rows[0].reason.cause in (Cause.COST, Cause.CASTS)
    return found


@pytest.mark.parametrize("op", ALL)
@pytest.mark.parametrize(
    ("build", "float32"), [(into_product, SHRINKING), (out_of_product, GROWING)]
)
def test_what_a_product_reads_or_writes_is_cast_where_it_is_smaller(
    op: str, build: Callable[[tf.Tensor, Move], tf.Tensor], float32: dict[str, object]
) -> None:
    rewrite = rewritten(graph_of(op, build), "O2")
    assert is_low(rewrite, "MatMul")
    assert is_low(rewrite, op) is (op not in float32)
    assert rewrite.plan is not None and rewrite.plan.casts == 3


def test_a_cast_goes_through_a_chain_of_views() -> None:
    def build(x: tf.Tensor, move: Move) -> tf.Tensor:
        views = tf.reshape(tf.expand_dims(tf.exp(x), 0), [-1, 64])
        return tf.matmul(move(views), weights())

    rewrite = rewritten(graph_of("Slice", build), "O2")
    assert not any(is_low(rewrite, op) for op in ("ExpandDims", "Reshape", "Slice"))


def test_a_slice_of_what_is_cast_anyway_stays_low() -> None:
    def build(x: tf.Tensor, move: Move) -> tf.Tensor:
        y = tf.exp(x)
        return tf.concat(
            [tf.matmul(y, weights()), tf.matmul(move(y), weights())], axis=0
        )

    assert is_low(rewritten(graph_of("Slice", build), "O2"), "Slice")


def test_what_computes_is_low_whatever_its_casts_cost() -> None:
    def build(x: tf.Tensor, move: Move) -> tf.Tensor:
        return tf.matmul(tf.reduce_max(tf.exp(x), axis=0)[None], weights())

    assert is_low(rewritten(graph_of("Slice", build), "O2"), "Max")


def test_a_table_of_embeddings_is_not_cast_for_its_rows() -> None:
    with tf.Graph().as_default() as graph:
        table = tf.compat.v1.get_variable("table", [65536, 64])
        rows = tf.gather(tf.identity(table), tf.constant([3, 1, 2]))
        tf.identity(tf.matmul(rows, weights()), "fetch")
    rewrite = rewritten(graph.as_graph_def(), "O2")
    assert not is_low(rewrite, "GatherV2") and is_low(rewrite, "MatMul")
