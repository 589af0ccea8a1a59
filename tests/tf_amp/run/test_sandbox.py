"""A graph is run for its time, and the program that it belongs to notices nothing."""

from __future__ import annotations

import gc
import pathlib
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from tests.programs import control_flow
from tf_amp.run.graph_copy import (
    STEP,
    NotRunnableError,
    Sandbox,
    filling_graph,
    local_device,
    sandbox_from_graph,
)
from tf_amp.run.graph_run import GraphRun
from tf_amp.tracing.grappler_preview import (
    graph_with_variables,
    kept_nodes,
    optimized_graph,
)

_SECONDS = 30.0


def _sandbox_of(function: tf.types.experimental.PolymorphicFunction) -> Sandbox:
    concrete = function.get_concrete_function()
    kept = kept_nodes(concrete.graph)
    graph_def = optimized_graph(graph_with_variables(concrete.graph), kept)
    return sandbox_from_graph(
        graph_def, Item(fetch=kept), shapes_from_graph_def(graph_def)
    )


def _sandbox_of_graph(graph: tf.Graph, *fetches: tf.Operation | tf.Tensor) -> Sandbox:
    graph_def = graph.as_graph_def()
    names = tuple(each.name.partition(":")[0] for each in fetches)
    return sandbox_from_graph(
        graph_def, Item(fetch=names), shapes_from_graph_def(graph_def)
    )


def _run(sandbox: Sandbox, times: int = 2) -> None:
    with GraphRun({"only": sandbox.graph_def}, sandbox.contents) as run:
        for _ in range(times):
            run.seconds(f"only/{STEP}", _SECONDS)


def _ops(graph_def: GraphDef) -> set[str]:
    return {node.op for node in graph_def.node}


def test_a_training_step_updates_private_variables_only() -> None:
    weight = tf.Variable(tf.ones([8, 4]), name="weight")
    count = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def step() -> tf.Tensor:
        loss = tf.reduce_sum(tf.ones([2, 8]) @ weight)
        weight.assign_sub(tf.ones([8, 4]) * loss)
        count.assign_add(1)
        return loss

    sandbox = _sandbox_of(step)
    assert {"AssignSubVariableOp", "AssignAddVariableOp"} <= _ops(sandbox.graph_def)
    _run(sandbox)
    assert (weight.numpy() == 1.0).all()
    assert count.numpy() == 0


def test_nothing_is_printed_written_or_called(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    called: list[int] = []
    path = tmp_path / "written"

    def note(x: np.ndarray) -> np.ndarray:
        called.append(1)
        return x

    @tf.function
    def step() -> tf.Tensor:
        x = tf.random.uniform([4, 4])
        noted = tf.numpy_function(note, [x], tf.float32)
        noted = tf.ensure_shape(noted, [4, 4])
        tf.print("a sandbox talks", x)
        tf.io.write_file(str(path), tf.strings.as_string(tf.reduce_sum(x)))
        tf.debugging.assert_less(x, 0.0, message="a sandbox minds")
        return noted @ tf.debugging.check_numerics(x, "a sandbox checks")

    sandbox = _sandbox_of(step)
    assert "RandomUniform" in _ops(sandbox.graph_def)
    _run(sandbox)
    assert called == []
    assert not path.exists()
    assert "a sandbox" not in "".join(capfd.readouterr())


def test_ops_that_watch_and_do_not_say_so_are_left_out() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.raw_ops.DebugIdentity(input=tf.random.uniform([4, 4]))
        product = tf.raw_ops.DebugIdentityV2(input=x) @ tf.ones([4, 4])
        nans = tf.raw_ops.DebugNanCount(input=product)
        summary = tf.raw_ops.DebugNumericSummary(input=product)
    sandbox = _sandbox_of_graph(graph, product, nans, summary)
    assert "MatMul" in _ops(sandbox.graph_def)
    assert not [op for op in _ops(sandbox.graph_def) if op.startswith("Debug")]
    _run(sandbox)


def test_data_sets_tables_and_generators_stay_where_they_are() -> None:
    data = iter(tf.data.Dataset.range(100).batch(4, drop_remainder=True))
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, -1.0)
    generator = tf.random.Generator.from_seed(1)
    before = generator.state.numpy()

    @tf.function
    def step() -> tf.Tensor:
        keys = next(data)
        table.insert(keys, tf.cast(keys, tf.float32))
        return table.lookup(keys)[:, None] * generator.normal([4, 4])

    _run(_sandbox_of(step))
    assert table.size().numpy() == 0
    assert (generator.state.numpy() == before).all()
    assert next(data).numpy().tolist() == [0, 1, 2, 3]


def test_graphs_of_tensorflow_1_run_with_private_variables_and_queues() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 8])
        weight = v1.Variable(tf.ones([8, 8]), use_resource=False)
        queue = v1.FIFOQueue(10, tf.float32, [[8]])
        taken = tf.ensure_shape(queue.dequeue(), [8])
        update = v1.assign_sub(weight, tf.ones([8, 8]))
        with tf.control_dependencies([update, queue.enqueue(tf.ones([8]))]):
            product = tf.identity(x @ weight + taken)
        initialize = v1.global_variables_initializer()
    with v1.Session(graph=graph) as session:
        session.run(initialize)
        _run(_sandbox_of_graph(graph, product, update.op))
        assert (session.run(weight) == 1.0).all()
        assert session.run(queue.size()) == 0


@pytest.mark.parametrize("v2", [False, True])
def test_loops_and_branches_with_python_inside_run(v2: bool) -> None:
    with control_flow(v2=v2), tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [4, 4])

        def ask(y: tf.Tensor) -> tf.Tensor:
            asked = tf.numpy_function(lambda z: z / 0, [y], tf.float32)
            return tf.ensure_shape(asked, [4, 4])

        def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return i + 1, tf.cond(i > 1, lambda: ask(y), lambda: y @ x)

        result = tf.while_loop(lambda i, _: i < 5, body, [tf.constant(0), x])[1]
    _run(_sandbox_of_graph(graph, result))


def test_ids_stay_within_the_table_they_are_looked_up_in() -> None:
    table = tf.Variable(tf.ones([50, 4]))

    @tf.function(input_signature=[tf.TensorSpec([1000], tf.int64)])
    def look_up(ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(table, tf.where(ids < 0, ids + 50, ids))

    sandbox = _sandbox_of(look_up)
    bounds = {c.name: c.bound for c in sandbox.contents if not c.is_state}
    assert list(bounds.values()) == [50]
    _run(sandbox)


def test_what_the_fetch_does_not_need_is_left_out() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2, 2])
        tf.linalg.inv(x)
        wanted = tf.nn.relu(x)
    sandbox = _sandbox_of_graph(graph, wanted)
    assert "MatrixInverse" not in _ops(sandbox.graph_def)
    assert sandbox.graph_def.node[-1].name == STEP


def test_data_of_unknown_rank_is_refused_by_name() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, None, name="riddle")
        y = tf.nn.relu(x)
    with pytest.raises(NotRunnableError, match="riddle"):
        _sandbox_of_graph(graph, y)


def test_the_graph_given_is_not_touched() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2, 2])
        y = tf.raw_ops.Print(input=x, data=[x], message="loud")
    graph_def = graph.as_graph_def()
    before = graph_def.SerializeToString(deterministic=True)
    sandbox = sandbox_from_graph(
        graph_def, Item(fetch=(y.op.name,)), shapes_from_graph_def(graph_def)
    )
    assert graph_def.SerializeToString(deterministic=True) == before
    assert "Print" not in _ops(sandbox.graph_def)


def test_made_up_values_are_held_where_they_are_read() -> None:
    with tf.Graph().as_default() as graph, tf.device("/CPU:1"):
        x = tf.compat.v1.placeholder(tf.float32, [2, 2])
        y = tf.nn.relu(x)
    sandbox = _sandbox_of_graph(graph, y)
    assert [content.device for content in sandbox.contents] == ["/device:CPU:1"]
    filling = filling_graph(sandbox.contents, {})[0].node
    devices = {n.device for n in filling if n.op in ("VarHandleOp", "AssignVariableOp")}
    assert devices == {"/device:CPU:1"}
    _run(sandbox)


@pytest.mark.parametrize(
    ("given", "local"),
    [
        ("/job:worker/replica:0/task:3/device:GPU:1", "/device:GPU:1"),
        ("/device:CPU:0", "/device:CPU:0"),
        ("/job:worker", ""),
        ("", ""),
    ],
)
def test_devices_are_those_of_this_process(given: str, local: str) -> None:
    assert local_device(given) == local


def test_a_run_that_has_ended_holds_no_memory() -> None:
    gc.disable()
    try:
        run = GraphRun({})
        held = run.hold(np.ones((1,), np.float32))
        with run:
            assert run.seconds(held.op.name) > 0.0
            session = weakref.ref(run.session)
        del run
        assert session() is None
    finally:
        gc.enable()
