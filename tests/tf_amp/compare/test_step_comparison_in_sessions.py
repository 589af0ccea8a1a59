"""Runs of a Session tell whether 16 bits are faster, as calls of a function do."""

from __future__ import annotations

import pathlib

import pytest

from tests.tf_amp.compare.test_step_comparison import run

# A graph with a slow op in one instance, and a finalized Session of it.
GRAPH = """
v1 = tf.compat.v1
tf_amp.enable(dtype="bfloat16")

def graph_of(noise=lambda: 0.0):
    x = v1.placeholder(tf.float32, [384, 384])
    y = tf.numpy_function(wait, [x, tf.constant([0.0], name="delay")], tf.float32)
    y.set_shape([384, 384])
    steps = v1.get_variable("steps", [], initializer=v1.zeros_initializer())
    return x, (((y @ A) @ A) @ A) @ A, steps.assign_add(1.0), noise()

def labels_of(calls, run):
    labels, called = [], call_sites.call_as

    def noting(callee, label, *args):
        labels.append(label)
        return called(callee, label, *args)

    call_sites.call_as = noting
    try:
        results = [run() for _ in range(calls)]
    finally:
        call_sites.call_as = called
    return labels, results
"""


@pytest.mark.parametrize("slow", ["mixed", "float32"])
def test_the_slow_instance_is_not_run_again(slow: str, tmp_path: pathlib.Path) -> None:
    code = f"""
{GRAPH}
slow = {"" if slow == "mixed" else "float32"!r}
with tf.Graph().as_default():
    x, y, step, _ = graph_of()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.graph.finalize()
        labels, results = labels_of(50, lambda: session.run([y, step], {{x: A}}))
        tail, _ = labels_of(3, lambda: session.run(y, {{x: A}}))
        print("float32" in labels[:30], set(labels[-20:]), results[-1][1], set(tail))
        print(len(tf_amp.plans()))
"""
    first, second = (run(code, tmp_path)[-2:] for _ in range(2))
    winner, plans = ("float32", 0) if slow == "mixed" else ("", 1)
    # Other fetches are another graph, which has not been compared.
    assert first == [f"True {{{winner!r}}} 50.0 {{''}}", str(plans + 1)]
    assert second[0] == "False {''} 50.0 {''}"


def test_a_run_that_may_gain_nothing_waits_in_float32(tmp_path: pathlib.Path) -> None:
    lines = run(
        f"""
CostModel.price = lambda *args: believed(*args)._replace(error=3.0)
{GRAPH}
slow, seconds = "float32", 0.03
with tf.Graph().as_default():
    x, y, step, _ = graph_of()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        labels, results = labels_of(50, lambda: session.run([y, step], {{x: A}}))
print(set(labels[:20]), labels[20:22], set(labels[-8:]), results[-1][1])
""",
        tmp_path,
    )
    assert lines[-1] == "{''} ['16 bits', '16 bits'] {'16 bits'} 50.0"


@pytest.mark.parametrize("broken", ["mixed", "float32"])
def test_an_error_of_one_instance_leaves_the_job_running_on_the_other(
    broken: str, tmp_path: pathlib.Path
) -> None:
    lines = run(
        f"""
{GRAPH}
slow, seconds = {"" if broken == "mixed" else "float32"!r}, -1.0

def wait(x, delay):
    if delay[0] < 0:
        raise MemoryError("planted")
    return x

with tf.Graph().as_default():
    x, y, _, _ = graph_of()
    with v1.Session() as session:
        labels, _ = labels_of(12, lambda: session.run(y, {{x: A}}))
print(set(labels[-4:]), len(tf_amp.plans()))
""",
        tmp_path,
    )
    winner, plans = ("float32", 0) if broken == "mixed" else ("", 1)
    assert lines[-1] == f"{{{winner!r}}} {plans}"


def test_instances_share_seeded_draws_queues_and_variables(
    tmp_path: pathlib.Path,
) -> None:
    lines = run(
        f"""
{GRAPH}
slow, seconds = "", 0.02

def noise():
    queue = tf.queue.FIFOQueue(100, [tf.float32])
    draws = tf.random.uniform([], seed=7)
    with tf.control_dependencies([queue.enqueue(draws)]):
        return queue.size(), draws

def results_of():
    with tf.Graph().as_default():
        x, y, step, more = graph_of(noise)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            run = lambda: session.run([y, step, *more], {{x: A}})
            labels, results = labels_of(40, run)
            print("float32" in labels)
            return [row[1:] for row in results]

compared = results_of()
tf_amp.disable()
print(compared == results_of(), int(compared[-1][0]), int(compared[-1][1]))
""",
        tmp_path,
    )
    assert lines == ["True", "False", "True 40 40"]


def test_partial_runs_callables_and_other_threads_go_on(tmp_path: pathlib.Path) -> None:
    lines = run(
        f"""
{GRAPH}
import concurrent.futures
from tf_amp.compare import own_steps

# A GPU is awaited in eager mode alone; a Session has waited.
own_steps._has_other_devices = lambda: True
with tf.Graph().as_default():
    x, y, step, _ = graph_of()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        run = lambda _: session.run([y, step], {{x: A}})[0][0, 0]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = list(pool.map(run, range(60)))
        handle = session.partial_run_setup([y], [x])
        partial = session.partial_run(handle, y, {{x: A}})
        by_callable = session.make_callable(y, [x])(A)
        print(max(results) < 1.05 * min(results), session.run(step))
        print(abs(partial / by_callable - 1).max() < 0.05)
""",
        tmp_path,
    )
    assert lines[-2:] == ["True 61.0", "True"]


def test_no_kernel_is_shared_by_graphs_that_would_make_two(
    tmp_path: pathlib.Path,
) -> None:
    lines = run(
        """
from grappler_pass.planning.draft import Trial

def graph_def(dtype, op):
    graph_def = GraphDef()
    node = graph_def.node.add(name="n", op=op)
    node.attr["T"].type = dtype.as_datatype_enum
    return graph_def

for op in ("CudnnRNNV3", "MatMul"):
    for dtype in (tf.float32, tf.float16):
        before, after = (graph_def(d, op) for d in (tf.float32, dtype))
        trial = Trial(before, after, None, {}, 0.0, 0.0)
        print(op, dtype.name, call_sites._shares_kernels(trial))
""",
        tmp_path,
    )
    assert lines == [
        "CudnnRNNV3 float32 True",
        "CudnnRNNV3 float16 False",
        "MatMul float32 True",
        "MatMul float16 True",
    ]
