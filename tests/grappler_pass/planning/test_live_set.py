"""The most bytes held at once: by hand, in loops, in plans, against an allocator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.client import timeline

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.view import Graph, Item
from grappler_pass.pipeline import Settings, draft_graph, optimize
from grappler_pass.planning.draft import Outcome, Trial
from grappler_pass.planning.live_set import LiveSet, largest_live_set, peak_of
from grappler_pass.planning.plan import Plan
from tests.rewriters import settings_of
from tests.sketch import sketch
from tests.text_graph import graph_from_text

EDGE = 8
TENSOR = EDGE * EDGE * 4
HALF = TENSOR // 2
# A table of which `s` updates two rows, and a variable that `u` updates.
VARIABLES = f"""
x = Placeholder shape=[{EDGE},{EDGE}]
v = VarHandleOp shape=[{EDGE},{EDGE}]
r = ReadVariableOp(v) dtype=float32
"""


def live_set(
    graph_def: GraphDef,
    fetch: str,
    feed: str = "",
    shapes: Shapes | None = None,
    threads: int = 1,
) -> LiveSet:
    item = Item(fetch=tuple(fetch.split()), feed=tuple(feed.split()))
    view = Graph(graph_def, item, Home("CPU"))
    return largest_live_set(view, shapes or shapes_from_graph_def(graph_def), threads)


def of_text(text: str, fetch: str = "y", feed: str = "", threads: int = 1) -> LiveSet:
    graph = graph_from_text(text.replace("; ", "\n"))
    return live_set(graph, fetch, feed, threads=threads)


def added(lines: str, fetch: str = "y", threads: int = 1) -> int:
    """Return what a step adds to two inputs."""
    given = f"x = Placeholder shape=[{EDGE},{EDGE}]; w = Placeholder shape=[8,8]; "
    found = of_text(given + lines, fetch, threads=threads)
    assert found.held == 2 * TENSOR
    return found.size - found.held


VIEWED = "a = MatMul(x, w); v = Identity(a); b = MatMul(a, w); c = MatMul(b, w)"
CAST = "a = MatMul(x, w); h = Cast(a) SrcT=float32 DstT=bfloat16"
SQUARED = f"{CAST}; b = MatMul(h, h) T=bfloat16; y = Cast(b) SrcT=bfloat16 DstT=float32"


@pytest.mark.parametrize(
    ("lines", "size"),
    [
        # A chain holds what is read and what is written.
        ("a = MatMul(x, w); b = MatMul(a, w); y = MatMul(b, w)", 2 * TENSOR),
        # A skipped connection is held to its last reader.
        (f"{VIEWED}; y = MatMul(a, c)", 3 * TENSOR),
        # An activation writes over what nothing else reads, unless that is an input.
        ("a = MatMul(x, w); b = Relu(a); y = Relu(b)", TENSOR),
        ("a = AddV2(x, w); y = Relu(a)", TENSOR),
        ("a = MatMul(x, w); b = Relu(a); y = MatMul(a, b)", 3 * TENSOR),
        # A view costs nothing and keeps what it looks at.
        (f"{VIEWED}; y = MatMul(v, c)", 3 * TENSOR),
        # A cast copies: `a` and `h` side by side, then `b` and `y`.
        (SQUARED, TENSOR + HALF),
        # What is read in both types is there twice.
        (f"{SQUARED.replace('y =', 'c =')}; y = MatMul(a, c)", 3 * TENSOR),
        # What is not read is freed at once, and what is not needed does not run.
        ("a = MatMul(x, w); b = MatMul(x, w); y = MatMul(a, w)", 2 * TENSOR),
        # What a step returns is held to its end.
        ("y = MatMul(x, w); a = MatMul(y, w); b = MatMul(a, w); z = MatMul(b, b)",
         3 * TENSOR),
        # Of two that are ready the last runs at once: its result waits for the other's.
        ("a = MatMul(x, w); b = MatMul(a, w); c = MatMul(a, x); d = MatMul(b, w); "
         "e = MatMul(c, w); y = MatMul(d, e)", 3 * TENSOR),
    ],
)  # fmt: skip
def test_what_is_held_at_once_is_counted(lines: str, size: int) -> None:
    fetch = "y z" if "z =" in lines else "y"
    assert added(lines, fetch) == size


SUMS = "a = MatMul(x, w); s = L2Loss(a); b = MatMul(a, w); t = L2Loss(b); "
SUMS += "c = MatMul(b, w); u = L2Loss(c); d = MatMul(c, w); v = L2Loss(d); "
SUMS += "p = AddV2(s, t); q = AddV2(u, v); y = AddV2(p, q)"


@pytest.mark.parametrize(
    ("lines", "alone", "both"),
    [
        # Nothing is ready beside a chain.
        ("a = MatMul(x, w); b = MatMul(a, w); y = MatMul(b, w)", 2, 2),
        # Two that are ready run at once, and hold what they write at once.
        ("a = MatMul(x, w); b = MatMul(x, x); c = MatMul(a, w); d = MatMul(b, w); "
         "y = AddV2(c, d)", 3, 4),
        # One thread leaves sums for the end, and holds what they read until then.
        (SUMS, 4, 2),
    ],
)  # fmt: skip
def test_a_second_thread_runs_what_is_ready(lines: str, alone: int, both: int) -> None:
    assert [round(added(lines, threads=n) / TENSOR) for n in (1, 2)] == [alone, both]


def test_what_is_fed_is_an_input_and_what_it_reads_does_not_run() -> None:
    text = f"c = Const value=[{','.join('1' * EDGE)}]; d = Neg(c); y = Mul(d, d)"
    assert of_text(text) == (3 * 4 * EDGE, 4 * EDGE, 0)
    assert of_text(text, feed="d") == (2 * 4 * EDGE, 4 * EDGE, 0)


@pytest.mark.parametrize(
    ("lines", "size"),
    [
        # Read and updated after its last reader.
        ("a = MatMul(x, r); u = AssignSubVariableOp(v, a)", TENSOR),
        # `b` still reads the old value, since it waits for the update.
        ("a = MatMul(x, r); u = AssignSubVariableOp(v, a); b = MatMul(r, r, ^u)",
         2 * TENSOR),
        # Rows are updated in place, so that each read of the whole is a copy.
        ("a = MatMul(x, r); i = Const value=[0,1,2,3,4,5,6,7] dtype=int32; "
         "u = ResourceScatterSub(v, i, a) Tindices=int32", 2 * TENSOR),
    ],
)  # fmt: skip
def test_a_variable_is_copied_where_its_old_value_may_be_read(
    lines: str, size: int
) -> None:
    found = of_text(VARIABLES + lines, "u b" if "b =" in lines else "u")
    indices = 4 * EDGE if "Const" in lines else 0
    assert found.held == 2 * TENSOR + indices
    assert found.size - found.held == size


def test_copies_of_weights_are_told_apart() -> None:
    types = "SrcT=float32 DstT=bfloat16"
    cast = f"h = Cast({{}}) {types}; i = Cast(x) {types}; y = MatMul(h, i) T=bfloat16"
    weights = of_text(
        f"{VARIABLES}c = Const value=2; t = Mul(r, c); " + cast.format("t")
    )
    assert weights.copies == HALF
    assert of_text(VARIABLES + cast.format("r")).copies == HALF
    assert of_text(VARIABLES + cast.format("x")).copies == 0


def test_new_nodes_are_as_large_as_what_they_are_called_after_or_read() -> None:
    text = f"""x = Placeholder shape=[{EDGE},{EDGE}]
    h = Cast(x) SrcT=float32 DstT=bfloat16
    conv/tf_amp_MatMul = MatMul(h, h) T=bfloat16
    conv = Relu(conv/tf_amp_MatMul) T=bfloat16
    y = Cast(conv) SrcT=bfloat16 DstT=float32"""
    graph = graph_from_text(text)
    known = {name: ((EDGE, EDGE),) for name in ("x", "conv")}
    assert live_set(graph, "y", shapes=known) == (2 * TENSOR + HALF, TENSOR, 0)
    # Where nothing is known, a guess is as good for what is called after each other.
    assert live_set(graph, "y", shapes={"none": ()}).size > 0


def loop_graph(count: int) -> GraphDef:
    """Push one product per iteration on a list that is read after the loop."""
    with sketch() as made:
        x = made.feed(64, 64)
        array = tf.TensorArray(tf.float32, size=count, element_shape=(64, 64))
        _, array = tf.while_loop(
            lambda i, _: i < count,
            lambda i, ta: (i + 1, ta.write(i, tf.matmul(x, x))),
            (0, array),
        )
        tf.identity(array.stack(), name="y")
        return made.graph.as_graph_def()


def test_a_loop_counts_with_what_its_lists_hold() -> None:
    few, many = (live_set(loop_graph(count), "y").size for count in (4, 20))
    # What is pushed, the stack that is made of it, and its place in that.
    assert many - few == 16 * (2 * 64 * 64 * 4 + 4)


def test_an_empty_graph_holds_nothing() -> None:
    assert live_set(GraphDef(), "", shapes={"none": ()}) == (0, 0, 0)


def mlp(batch: int) -> GraphDef:
    with sketch() as made:
        h = made.feed(batch, 512)
        for layer in range(4):
            h = tf.nn.relu(tf.matmul(h, made.weight(512, 512, name=f"w{layer}")))
        tf.identity(h, name="y")
        return made.graph.as_graph_def()


def plan_of(batch: int, level: str) -> Plan:
    graph = mlp(batch)
    models = {"CPU": CostModel(DeviceProfile.load("cpu-avx512-bf16"))}
    settings = settings_of("bfloat16", level, models=models, tie=0.0)
    item = Item(fetch=("y",))
    shapes = shapes_from_graph_def(graph)
    return draft_graph(graph, item, settings, shapes=lambda: shapes).plan


def test_a_plan_tells_the_memory_of_both_precisions() -> None:
    plan = plan_of(4096, "O1")
    held = 4096 * 512 * 4 + 4 * 512 * 512 * 4
    assert plan.held_bytes == held
    assert plan.peak_bytes_before == held + 2 * 4096 * 512 * 4
    assert not plan.is_empty
    assert held < plan.peak_bytes_after != plan.peak_bytes_before
    assert "MiB of memory (12 of it variables and inputs" in plan.summary()


def test_a_plan_names_copies_of_weights_unless_they_are_few() -> None:
    plan = plan_of(64, "O2")
    assert plan.weight_bytes_after > 0
    assert "weights in bfloat16) instead of" in plan.summary()
    wide = dataclasses.replace(plan, peak_bytes_after=2**40)
    assert "weights in bfloat16" not in wide.summary()


class Slower:
    """Own steps that were slower; keeps what they were asked of."""

    asked: Trial

    def outcome(self, trial: Trial, decided: object) -> Outcome:
        self.asked = trial
        return Outcome.SLOWER


def test_a_plan_that_steps_found_slower_holds_what_float32_holds() -> None:
    graph, steps = mlp(4096), Slower()
    models = {"CPU": CostModel(DeviceProfile.load("cpu-avx512-bf16"))}
    settings = settings_of("bfloat16", "O1", models=models, own_steps=steps)
    shapes = shapes_from_graph_def(graph)
    plan = optimize(graph, Item(fetch=("y",)), settings, shapes=lambda: shapes).plan
    assert plan is not None and plan.is_empty
    assert plan.peak_bytes_after == plan.peak_bytes_before > plan.held_bytes > 0
    assert steps.asked.added_bytes >= plan.peak_bytes_before - plan.held_bytes


def test_settings_favor_memory_a_little_by_default() -> None:
    settings = Settings("bfloat16", OpLists.for_dtype("bfloat16"), {})
    assert settings.tie == 0.01


def test_the_prediction_is_near_what_an_allocator_counts() -> None:
    with sketch() as made:
        h = x = made.feed(16, 64, 64, 16)
        for layer in range(6):
            kernel = made.weight(3, 3, 16, 16, name=f"w{layer}")
            y = tf.nn.conv2d(h, kernel, 1, "SAME")
            h = tf.nn.relu(y) + h if layer % 2 else tf.tanh(y)
        loss = tf.reduce_mean(tf.square(h), name="loss")
        gradients = tf.gradients(loss, tf.compat.v1.global_variables())
        updates = tf.group(*gradients, name="updates")
        start = tf.compat.v1.global_variables_initializer()
        counted = counted_bytes(start, [loss, updates], {x: np.ones(x.shape)})
        graph = made.graph.as_graph_def()
    step = tf.compat.v1.graph_util.extract_sub_graph(graph, ["loss", "updates"])
    found = live_set(step, "loss updates")
    # The trace does not tell of variables and inputs.
    assert 0.75 * counted < found.size - found.held < 1.1 * counted


def counted_bytes(
    start: tf.Operation, fetches: list[object], feed: dict[tf.Tensor, object]
) -> int:
    """Return the most bytes that TensorFlow's trace of a step tells of."""
    v1 = tf.compat.v1
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    # In the thread of the caller one operation runs after the other.
    options = v1.RunOptions(
        trace_level=v1.RunOptions.FULL_TRACE, inter_op_thread_pool=-1
    )
    trace = v1.RunMetadata()
    with v1.Session(config=config) as session:
        session.run(start)
        session.run(fetches, feed, options=options, run_metadata=trace)
    analysis = timeline.Timeline(trace.step_stats).analyze_step_stats(show_memory=True)
    return max(each.num_bytes for each in analysis.allocator_maximums.values())


def test_a_loop_is_left_once_all_has_entered_it() -> None:
    graph_def = graph_from_text(
        f"""
        x = Placeholder shape=[{EDGE},{EDGE}]
        begin = Enter(x) frame_name=loop
        merge = Merge(begin, next)
        goes = Const(^merge) value=1 dtype=bool
        cond = LoopCond(goes)
        switch = Switch(merge, cond)
        exit = Exit(switch)
        late = MatMul(x, x)
        enter = Enter(late) frame_name=loop is_constant=true
        sum = AddV2(switch:1, enter)
        next = NextIteration(sum)
        """
    )
    view = Graph(graph_def, Item(fetch=("exit", "next")), Home("CPU"))
    order = peak_of(view, shapes_from_graph_def(graph_def)).order
    names = [view.nodes[number].name for number in order]
    assert names.index("exit") > names.index("enter")
