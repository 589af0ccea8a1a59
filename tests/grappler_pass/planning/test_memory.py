"""Peak bytes of live activations: by hand, against simulation, in loops, in plans."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.client import timeline

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.eligibility.reads import VariableReads
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.type_slots import DTYPE_ENUMS, SlotTable
from grappler_pass.graph.view import Graph, Item
from grappler_pass.pipeline import Settings, draft_graph
from grappler_pass.planning.decisions import peak_of
from grappler_pass.planning.draft import CastPlan, Draft, plan_casts
from grappler_pass.planning.plan import Plan
from tests.rewriters import settings_of
from tests.sketch import sketch
from tests.text_graph import graph_from_text

BFLOAT16 = DTYPE_ENUMS["bfloat16"]
EDGE = 8
TENSOR = EDGE * EDGE * 4


def peak(graph_def: GraphDef, fetch: str, low: str = "", feed: str = "") -> int:
    """Predict with the first slot of the named nodes in 16 bits."""
    item = Item(fetch=tuple(fetch.split()), feed=tuple(feed.split()))
    draft = colored(graph_def, item, low)
    return peak_of(dataclasses.replace(draft, casts=plan_casts(draft))).size


def colored(graph_def: GraphDef, item: Item, low: str) -> Draft:
    view = Graph(graph_def, item)
    slots = SlotTable.from_view(view)
    firsts = {slots.slots_of[view.index[name]][0] for name in low.split()}
    return Draft(
        graph_def,
        item,
        settings_of("bfloat16", "O1"),
        infer_shapes=dict,
        name="",
        view=view,
        slots=slots,
        reads=VariableReads.from_view(view),
        shapes=shapes_of(graph_def),
        low=tuple(slot in firsts for slot in range(len(slots.slots))),
    )


shapes_of = shapes_from_graph_def
ADDED = f"c = Const value=[{','.join('1' * EDGE)}]; a = MatMul(x, w)"
VIEWED = "a = MatMul(x, w); v = Identity(a); b = MatMul(a, w); c = MatMul(b, w)"
HALF = TENSOR // 2


@pytest.mark.parametrize(
    ("lines", "low", "feed", "size"),
    [
        # A chain holds what is read and what is written.
        ("a = MatMul(x, w); b = MatMul(a, w); y = MatMul(b, w)", "", "", 2 * TENSOR),
        # A skipped connection is held to its last reader.
        (f"{VIEWED}; y = MatMul(a, c)", "", "", 3 * TENSOR),
        # An activation writes over what nothing else reads.
        ("a = MatMul(x, w); b = Relu(a); y = Relu(b)", "", "", TENSOR),
        ("a = MatMul(x, w); b = Relu(a); y = MatMul(a, b)", "", "", 3 * TENSOR),
        # A view costs nothing and keeps what it looks at.
        (f"{VIEWED}; y = MatMul(v, c)", "", "", 3 * TENSOR),
        # Both copies of the two arguments are read by `a`, which writes half a tensor.
        ("a = MatMul(x, w); b = MatMul(a, a); y = MatMul(b, b)", "", "", 2 * TENSOR),
        ("a = MatMul(x, w); b = MatMul(a, a); y = MatMul(b, b)", "a b y", "", 3 * HALF),
        # Before a float32 reader, half a tensor and its copy live side by side.
        ("a = MatMul(x, w); b = MatMul(a, a); y = MatMul(b, b)", "b", "", 2 * TENSOR),
        # `a`, its copy for both, and the copy of the argument that `b` reads.
        ("a = MatMul(x, w); b = MatMul(a, w); y = MatMul(a, b)", "b y", "", 2 * TENSOR),
        # A constant is copied as the graph runs only if it may be fed.
        (f"{ADDED}; y = Mul(a, c)", "a y", "", 3 * HALF),
        (f"{ADDED}; y = Mul(a, c)", "a y", "c", 3 * HALF + 2 * EDGE),
    ],
)
def test_what_is_alive_at_once_is_counted(
    lines: str, low: str, feed: str, size: int
) -> None:
    given = f"x = Placeholder shape=[{EDGE},{EDGE}]\nw = Placeholder shape=[8,8]\n"
    graph = graph_from_text(given + lines.replace("; ", "\n"))
    assert peak(graph, "y", low, feed) == size


@pytest.mark.parametrize("seed", range(40))
def test_the_prediction_is_what_a_simulation_finds(seed: int) -> None:
    draw = random.Random(seed)
    graph, fetch = random_chain(draw)
    assert peak(graph, fetch) == simulated(graph, fetch)


def random_chain(draw: random.Random) -> tuple[GraphDef, str]:
    """Draw products and moves of tensors of different sizes, a few of them fetched."""
    lines, names = [], []
    for size in (4, 8, 16):
        lines.append(f"x{size} = Placeholder shape=[{size},{size}]")
        names.append((f"x{size}", size))
    for number in range(draw.randint(3, 14)):
        (left, size) = draw.choice(names)
        right = draw.choice([name for name, own in names if own == size])
        op = draw.choice([f"MatMul({left}, {right})", f"Identity({left})"])
        lines.append(f"n{number} = {op}")
        names.append((f"n{number}", size))
    fetch = {name for name, _ in draw.sample(names[3:], draw.randint(1, 2))}
    return graph_from_text("\n".join(lines)), " ".join(sorted(fetch))


def simulated(graph_def: GraphDef, fetch: str) -> int:
    """Run with reference counts, one node after the other."""
    view = Graph(graph_def)
    shapes = shapes_of(graph_def)
    wanted = set(fetch.split())
    tensor_of: dict[int, str] = {}
    for index in view.order:
        node = view.nodes[index]
        view_of = [tensor_of[port.node] for port in node.inputs]
        tensor_of[index] = view_of[0] if node.op == "Identity" else node.name
    references = dict.fromkeys(tensor_of.values(), 0)
    for node in view.nodes:
        for port in node.inputs:
            references[tensor_of[port.node]] += 1
        references[tensor_of[node.index]] += node.name in wanted
    alive, most = {}, 0
    for index in view.order:
        node = view.nodes[index]
        if node.op == "MatMul":
            alive[node.name] = 4 * math.prod(shapes[node.name][0] or ())
        most = max(most, sum(alive.values()))
        for port in node.inputs:
            references[tensor_of[port.node]] -= 1
        for name in [name for name in alive if references[name] == 0]:
            del alive[name]
    return most


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
    few, many = (peak(loop_graph(count), "y") for count in (4, 20))
    # What is pushed, and the stack that is made of it.
    assert many - few == 16 * 2 * 64 * 64 * 4


def test_an_empty_plan_needs_no_memory_and_no_casts() -> None:
    draft = colored(GraphDef(), Item(), "")
    assert plan_casts(draft) == CastPlan()
    assert peak_of(dataclasses.replace(draft, casts=CastPlan())) == (0, 0)


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
    shapes = shapes_of(graph)
    return draft_graph(graph, item, settings, shapes=lambda: shapes).plan


def test_a_plan_tells_the_memory_of_both_precisions() -> None:
    plan = plan_of(4096, "O1")
    assert plan.peak_bytes_before == 2 * 4096 * 512 * 4
    assert not plan.is_empty
    assert 0 < plan.peak_bytes_after != plan.peak_bytes_before
    assert "MiB" in plan.summary()


def test_copies_of_weights_are_told_apart() -> None:
    plan = plan_of(64, "O2")
    # All of them are read as the step begins, and so are cast then.
    assert plan.weight_bytes_after == 4 * 512 * 512 * 2
    assert plan.weight_bytes_after < plan.peak_bytes_after
    assert ", 2 of it weights in bfloat16; kept" in plan.summary()
    wide = dataclasses.replace(plan, peak_bytes_after=2**40)
    assert "of it weights" not in wide.summary()


def test_what_is_computed_of_a_weight_alone_is_one_and_an_input_is_none() -> None:
    def weights(given: str) -> int:
        lines = "r = ReadVariableOp(h) dtype=float32\n"
        graph = graph_from_text(
            f"x = Placeholder shape=[8,8]\nh = VarHandleOp shape=[8,8]\n{lines}"
            f"c = Const value=[2]\nt = Mul({given}, c)\ny = MatMul(x, t)"
        )
        draft = colored(graph, Item(fetch=("y",)), "y")
        shapes = {**shapes_of(graph), "r": ((8, 8),), "t": ((8, 8),), "y": ((8, 8),)}
        draft = dataclasses.replace(draft, shapes=shapes)
        draft = dataclasses.replace(draft, casts=plan_casts(draft))
        return peak_of(draft).weights

    assert weights("r") == TENSOR // 2
    assert weights("x") == 0


def test_weights_that_are_kept_are_there_all_the_time() -> None:
    graph = mlp(4096)
    draft = colored(graph, Item(fetch=("y",)), "MatMul MatMul_1 MatMul_2 MatMul_3")
    draft = dataclasses.replace(draft, casts=plan_casts(draft))
    down = [c for c in draft.casts.conversions if c.target_dtype == BFLOAT16]
    kept = dataclasses.replace(draft, kept=frozenset(c.port for c in down))
    assert peak_of(draft).weights < peak_of(kept).weights == 4 * 512 * 512 * 2


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
    assert 0.75 * counted < peak(step, "loss") < 1.1 * counted


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
