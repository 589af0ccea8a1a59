"""Single ops are timed as they are, within time and memory."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.costs.database.probes import cast_probe
from tests.forking import run_forked
from tests.onednn import needs_onednn
from tests.probe_samples import matmul, measure, probe
from tf_amp.measuring import op_timing, probe_timing
from tf_amp.measuring.sandbox import memory
from tf_amp.measuring.sandbox.own_thread import StuckError, run_in_own_thread
from tf_amp.measuring.sandbox.runnable import dtypes_of
from tf_amp.tracing import bypass

BOTH = ("float32", "bfloat16")
FUSED = {
    "fused_ops": 'list { s: "BiasAdd" s: "Relu" }',
    "num_args": "i: 1",
    "transpose_a": "b: false",
    "transpose_b": "b: false",
}
FUSED_CONVOLUTION = {
    "fused_ops": 'list { s: "BiasAdd" }',
    "num_args": "i: 1",
    "TArgs": "list { type: DT_FLOAT }",
    "strides": "list { i: 1 i: 1 i: 1 i: 1 }",
    "padding": 's: "SAME"',
}


def dtypes_measured(given, dtypes=BOTH, seconds=5.0):
    rows = measure(given, dtypes, "/CPU:0", seconds)
    for row in rows:
        assert row.probe == given
        assert 1e-8 < row.sample.seconds < 1.0
        assert row.sample.cold_seconds >= row.sample.seconds
        assert row.sample.spread >= 0.0 and row.sample.count >= 1
        assert abs(row.sample.when - time.time()) < 60.0
    return [row.dtype for row in rows]


def test_an_op_is_measured_at_each_dtype():
    assert dtypes_measured(matmul(64, 64, 64)) == ["float32", "bfloat16"]
    assert dtypes_measured(probe("Tanh", (32, 32)), ("float32", "float16")) == [
        "float32",
        "float16",
    ]


def test_a_fused_op_is_measured_as_it_is():
    fused = probe("_FusedMatMul", (32, 64), (64, 16), (16,), **FUSED)
    assert dtypes_measured(fused) == ["float32", "bfloat16"]


def test_a_dtype_without_a_kernel_has_no_row():
    assert dtypes_measured(probe("Cholesky", (4, 4))) == ["float32"]


@needs_onednn
def test_a_fused_op_without_a_kernel_or_parts_has_no_row():
    unsplittable = {**FUSED, "fused_ops": 'list { s: "BiasAdd" s: "GeluExact" }'}
    fused = probe("_FusedMatMul", (32, 64), (64, 16), (16,), **unsplittable)
    assert dtypes_measured(fused, ("float32", "float16")) == ["float32"]


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [((8, 16, 16), range(16, 17)), ((32, 512, 2048), range(5, 16)), ((1024,) * 3, [1])],
)
def test_what_is_short_is_run_many_times_in_a_row(monkeypatch, sizes, runs):
    # Alone, the threads of a short op often share a core.
    lengths = []
    chain = op_timing.TimingGraph.chain
    monkeypatch.setattr(
        op_timing.TimingGraph,
        "chain",
        lambda self, call, sets, length: (
            lengths.append(length) or chain(self, call, sets, length)
        ),
    )
    monkeypatch.setattr(probe_timing, "take_turns", lambda series, end: None)
    measure(matmul(*sizes), ("float32",), "/CPU:0", 5.0)
    assert max(lengths) in runs


def test_a_fused_op_without_a_kernel_is_measured_as_its_parts(monkeypatch):
    shapes = (2, 8, 8, 4), (3, 3, 4, 4), (4,)
    fused = probe("_FusedConv2D", *shapes, **FUSED_CONVOLUTION)
    graphs = []
    chain = op_timing.TimingGraph.chain
    monkeypatch.setattr(
        op_timing.TimingGraph,
        "chain",
        lambda self, *given: graphs.append(self._graph) or chain(self, *given),
    )
    assert dtypes_measured(fused) == ["float32", "bfloat16"]
    ops = {op.type for op in graphs[-1].get_operations()}
    assert {"_FusedConv2D", "Conv2D", "BiasAdd"} <= ops


def test_an_op_that_fails_has_no_row():
    assert dtypes_measured(matmul(8, 16, 8), ("float32",)) == ["float32"]
    unequal = probe("MatMul", (8, 16), (9, 8))
    assert dtypes_measured(unequal) == []
    # Fails when it runs, not when it is built.
    divided = probe("Reshape", (8,), constants=[(3, -1)], Tshape="type: DT_INT32")
    assert dtypes_measured(divided) == []


def test_a_cast_is_measured_as_what_it_casts_to():
    down = cast_probe(4096, "float32", "bfloat16")
    assert dtypes_of(down, "bfloat16") == ("bfloat16",)
    assert dtypes_measured(down, ("bfloat16",)) == ["bfloat16"]
    assert dtypes_of(matmul(2, 2, 2), "float16") == ("float32", "float16")


def test_cold_data_takes_another_run_where_they_exceed_the_cache(monkeypatch):
    monkeypatch.setattr(memory, "cache_bytes", lambda: 1 << 20)
    sets = []
    chain = op_timing.TimingGraph.chain
    monkeypatch.setattr(
        op_timing.TimingGraph,
        "chain",
        lambda self, call, given, length: (
            sets.append(len(given)) or chain(self, call, given, length)
        ),
    )
    (row,) = measure(probe("Relu", (1 << 17,)), ("float32",), "/CPU:0", 5.0)
    assert row.dtype == "float32"
    # A half more than the cache, in inputs of half a MiB.
    assert max(sets) == 3
    sets.clear()
    assert dtypes_measured(matmul(256, 256, 256), ("float32",)) == ["float32"]
    assert set(sets) == {1}
    assert dtypes_measured(probe("Relu", (64,)), ("float32",)) == ["float32"]
    assert set(sets) == {1}


def test_look_ups_on_cold_data_share_the_table_and_take_other_rows(monkeypatch):
    monkeypatch.setattr(memory, "cache_bytes", lambda: 1 << 20)
    held = []
    hold = op_timing.TimingGraph.hold
    monkeypatch.setattr(
        op_timing.TimingGraph,
        "hold",
        lambda self, arrays: held.append(arrays) or hold(self, arrays),
    )
    look_up = probe(
        "GatherV2",
        (1 << 15, 64),
        indices=(1024,),
        constants=[(0,)],
        dtype_attr="Tparams",
        Taxis="type: DT_INT32",
        Tindices="type: DT_INT32",
        batch_dims="i: 0",
    )
    (row,) = measure(look_up, ("float32",), "/CPU:0", 5.0)
    assert row.sample.cold_seconds > 0.0
    # Sets of 256 KiB looked up, half a MiB beyond the cache, after the warm one.
    cold = held[1:]
    assert [len(arrays) for arrays in cold] == [2, *[1] * (len(cold) - 1)]
    assert len(cold) == 6
    assert not np.array_equal(cold[1][0], cold[2][0])


def test_what_would_hold_too_much_memory_or_take_too_long_is_not_run(monkeypatch):
    assert 0 < memory.most_bytes() <= 0.25 * memory.free_bytes() * 1.1
    held = []
    hold = op_timing.TimingGraph.hold
    monkeypatch.setattr(
        op_timing.TimingGraph,
        "hold",
        lambda self, arrays: held.append(arrays) or hold(self, arrays),
    )
    assert dtypes_measured(probe("Relu", (1 << 40,))) == []
    assert dtypes_measured(matmul(1 << 13, 1 << 13, 1 << 13), seconds=0.01) == []
    assert held == []
    monkeypatch.setattr(memory, "most_bytes", lambda device_type: 1 << 20)
    # Its result, not its input, would be too large.
    tiled = probe("Tile", (4,), constants=[(1 << 19,)], Tmultiples="type: DT_INT32")
    assert dtypes_measured(tiled) == []
    assert held == []


HELD = """
import ctypes, gc
from tests.probe_samples import measure, probe

def resident():
    gc.collect()
    # What is free but kept by malloc is not held.
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

large = probe("Relu", (1 << 23,))
measure(large, ("float32", "bfloat16"), "/CPU:0", 0.2)
before = resident()
for _ in range(6):
    measure(large, ("float32", "bfloat16"), "/CPU:0", 0.1)
print(resident() - before)
"""


def test_what_is_held_is_freed():
    # In a process of its own, since others' tests take and free memory, too.
    (grown,) = run_forked(HELD).lines()
    # The six held 288 MiB of inputs in all.
    assert int(grown) < 96 << 20


def test_an_op_that_exceeds_the_time_is_run_once(monkeypatch):
    runs, timed = [], op_timing.elapsed

    def elapsed(run):
        runs.append(run)
        return 0.0 * timed(run) + seconds

    monkeypatch.setattr(probe_timing, "elapsed", elapsed)
    monkeypatch.setattr(op_timing, "elapsed", elapsed)
    monkeypatch.setattr(probe_timing, "_check_affordable", lambda *given: None)
    seconds = 2.0
    (row,) = measure(matmul(16, 16, 16), ("float32",), "/CPU:0", 1.0)
    assert (row.sample.seconds, row.sample.count, row.sample.spread) == (2.0, 1, 0.3)
    assert len(runs) == 1
    # One run of a short op, warm-up included, says nothing.
    seconds = 0.01
    assert measure(matmul(16, 16, 16), ("float32",), "/CPU:0", 1e-3) == ()
    assert len(runs) == 2


def test_measuring_leaves_the_callers_thread_as_it_was():
    graph = tf.Graph()
    with graph.as_default():
        assert dtypes_measured(matmul(16, 16, 16)) == ["float32", "bfloat16"]
        assert tf.compat.v1.get_default_graph() is graph
    assert graph.get_operations() == []
    assert not [t for t in threading.enumerate() if "tf-amp" in t.name]


def test_the_thread_that_measures_is_not_rewritten_for():
    states = run_in_own_thread(
        lambda stopped: (bypass.leaves_graphs_alone(), stopped()), 10.0
    )
    assert states == (True, False)
    assert not bypass.leaves_graphs_alone()


def test_what_goes_wrong_in_a_sandbox_is_raised_and_what_hangs_is_given_up():
    def fail(stopped):
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        run_in_own_thread(fail, 10.0)
    ended = threading.Event()

    def hang(stopped):
        while not stopped():
            time.sleep(0.001)
        ended.set()

    with pytest.raises(StuckError, match="0 seconds"):
        run_in_own_thread(hang, 0.05)
    assert ended.wait(10.0)


def test_the_same_inputs_go_to_each_run_of_a_chain():
    with op_timing.timing_graph("/CPU:0") as graph:
        sets = [graph.hold([np.ones(3, np.float32)]) for _ in range(2)]
        seen = []
        chain = graph.chain(
            lambda inputs: seen.append(inputs[0]) or tf.identity(inputs[0]).op, sets, 5
        )
        graph.fill()
        chain.run()
        chain.base()
    assert chain.length == 5
    assert seen == [sets[0][0], sets[1][0]] * 2 + [sets[0][0]]
