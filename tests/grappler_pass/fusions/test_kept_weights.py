"""What a graph computes of its variables alone is computed again when they change."""

from __future__ import annotations

from grappler_pass.planning.plan import Cause, Reason
from tests.forking import run_forked
from tests.grappler_pass.fusions.rewriting import CASES
from tests.text_graph import text_from_graph

fused = CASES["kept_weights"]


def test_what_is_kept_already_is_not_kept_again() -> None:
    assert not fused(text_from_graph(fused().graph_def)).changed


def test_little_is_not_looked_for_and_listed_with_its_reason() -> None:
    small = {"w": (8, 8), "scaled": (8, 8), "rsqrt": (8,), "sum": (8,)}
    rewrite = fused(**small)
    assert not rewrite.changed
    (declined,) = rewrite.plan.declined_fusions
    assert (declined.rule, declined.node) == ("kept_weights", "sum")
    assert (declined.seconds, declined.reason) == (0.0, Reason(Cause.FUSION_COST))


def test_little_beside_much_is_listed_and_computed_again() -> None:
    little = "few = VarHandleOp dtype=float32 shape=[8]\n"
    little += "given = ReadVariableOp(few) dtype=float32\nflat = Squeeze(given)"
    text = f"{fused.text}\n{little}\nread_by = Add(flat, x)"
    shapes = {**fused.shapes, "given": (8,), "flat": (8,)}
    rewrite = fused._replace(shapes=shapes)(text)
    (fusion,) = rewrite.plan.fusions
    (declined,) = rewrite.plan.declined_fusions
    assert (fusion.node, declined.node) == ("sum", "flat")
    assert declined.reason == Reason(Cause.FUSION_COST)
    assert "read_by = Add(flat, x)" in text_from_graph(rewrite.graph_def)


PRELUDE = """
import threading
import numpy as np
import tensorflow as tf
import tf_amp
from grappler_pass import kept_kernels
from tensorflow.core.framework import graph_pb2

tf_amp.enable(dtype="bfloat16", device_profile="cpu-avx512-bf16")
w = tf.Variable(np.random.default_rng(0).normal(size=(512, 512)).astype("float32"))
x = tf.constant(np.random.default_rng(1).normal(size=(1024, 512)).astype("float32"))

@tf.function
def product(x):
    return x @ w

def rounded(x):
    return tf.cast(tf.cast(x, tf.bfloat16), tf.float32)

def is_right(given=None):
    wanted = rounded(x) @ rounded(w if given is None else given)
    got = product(x)
    return bool(tf.reduce_max(abs(got - wanted)) <= 0.02 * tf.reduce_max(abs(wanted)))

assert is_right() and is_right()
assert "kept_weights 1" in tf_amp.plans()[-1].summary()

def place():
    return w.read_value()._numpy().__array_interface__["data"][0]
"""


def run(code: str) -> list[str]:
    """Return what a program prints."""
    env = {"TF_AMP_STRICT": "1", "TF_AMP_TUNE": "off"}
    done = run_forked(PRELUDE + code, env=env)
    assert "Traceback" not in done.err, done.err
    return done.lines()


def test_who_changes_a_variable_gets_other_memory_and_new_values() -> None:
    lines = run(
        """
import tempfile
ways = {
    "assign": lambda: w.assign(2.0 * w),
    "assign_add": lambda: w.assign_add(tf.ones_like(w)),
    "rows": lambda: w.scatter_nd_update([[3]], [tf.fill([512], 9.0)]),
    "slice": lambda: w[5].assign(tf.fill([512], -9.0)),
    "kernel": lambda: tf.raw_ops.ResourceApplyGradientDescent(
        var=w.handle, alpha=0.5, delta=tf.ones_like(w)),
    "function": tf.function(lambda: w.assign_sub(0.5 * w)),
    "compiled": tf.function(lambda: w.assign_sub(0.1 * w), jit_compile=True),
}
for name, change in ways.items():
    before = w.numpy()
    change()
    assert (w.numpy() != before).any(), name
    print(name, is_right(), is_right(), not is_right(before))
checkpoint = tf.train.Checkpoint(w=w)
path = checkpoint.save(tempfile.mkdtemp() + "/c")
w.assign(tf.zeros_like(w))
print("zeros", is_right())
checkpoint.restore(path)
print("restored", is_right())
"""
    )
    for line in lines[-9:]:
        assert line.split()[1:] == ["True"] * (len(line.split()) - 1), line
    assert len(lines) >= 9


def test_loops_and_branches_multiply_by_what_a_variable_is_by_then() -> None:
    lines = run(
        """
@tf.function
def in_a_loop(x):
    step = lambda i, y: (i + 1, tf.tanh(y @ w))
    return tf.while_loop(lambda i, _: i < 3, step, (0, x))[1]

@tf.function
def in_a_branch(x):
    is_large = tf.reduce_sum(x) > 1e9
    return tf.cond(is_large, lambda: x @ w, lambda: x @ (0.5 * w))

def same(function, compute):
    wanted = compute(rounded(w))
    error = tf.reduce_max(abs(function(x) - wanted))
    return bool(error <= 0.02 * tf.reduce_max(abs(wanted)))

def looped(w):
    y = x
    for _ in range(3):
        y = tf.tanh(rounded(y) @ w)
    return y

for factor in (0.01, 2.0, 2.0):
    w.assign(factor * w)
    print(same(in_a_loop, looped), same(in_a_branch, lambda w: rounded(x) @ (0.5 * w)))
for plan in tf_amp.plans()[-2:]:
    print(sum("while" in e.node or "cond" in e.node for e in plan.fusions))
"""
    )
    assert lines[-5:] == ["True True"] * 3 + ["0", "0"]


def test_what_is_found_is_not_computed_again() -> None:
    lines = run(
        """
from tf_amp._tensorflow_private.functions import executed_graphs

def fresh(x):
    return x @ w

graphs = executed_graphs(lambda: tf.function(fresh)(x))
graph_def = max(graphs, key=lambda each: len(each.node))
(recall,) = [n for n in graph_def.node if n.op == "TfAmpRecall"]
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    source = tf.compat.v1.get_variable("w", initializer=np.ones([4], "float32"))
    read = source.read_value()
    part = graph_pb2.GraphDef(node=[recall])
    part.node[0].input[:] = ["source"]
    part.node[0].device = ""
    keep = part.node.add(name="keep", op="TfAmpKeep",
        input=[recall.name + ":1", "source", "value"])
    for name in ("Tsources", "Tkept"):
        keep.attr[name].list.type.append(1)
    kept = part.node.add(name="kept", op="TfAmpKept", input=["keep"])
    kept.attr["Tkept"].list.type.append(1)
    found, kept = tf.graph_util.import_graph_def(
        part, {"source": read, "value": 2.0 * read}, [recall.name + ":0", "kept:0"])
    change = tf.compat.v1.assign(source, 2.0 * source)
    session.run(tf.compat.v1.global_variables_initializer())
    both = found, kept
    for _ in range(2):
        print(*(bool(session.run(both)[0]) for _ in range(3)), session.run(kept)[0])
        session.run(change)
"""
    )
    assert lines[-2:] == ["False True True 2.0", "False True True 4.0"]


def test_nothing_is_kept_once_gradients_are_taken() -> None:
    lines = run(
        """
before = place()
w.assign_add(tf.ones_like(w))
print(place() != before, is_right())
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(w * w)
tape.gradient(loss, w)
before = place()
w.assign_add(tf.ones_like(w))
print(place() == before, is_right(), kept_kernels.are_at_hand())

@tf.function
def other(x):
    return (x @ w) @ w

other(x)
print("kept_weights" in tf_amp.plans()[-1].summary())
"""
    )
    assert lines[-3:] == ["True True", "True True False", "False"]


def test_threads_see_values_of_one_moment() -> None:
    lines = run(
        """
values = [float(2**i) for i in range(6)]
ones = tf.ones_like(w)
wrong = []
done = threading.Event()
w.assign(values[0] * ones)
rows = tf.ones_like(x)

def look():
    while not done.is_set():
        got = product(rows).numpy()
        if len(set(got.ravel())) != 1 or got[0, 0] / 512 not in values:
            wrong.append(got[0, 0])

threads = [threading.Thread(target=look) for _ in range(3)]
for thread in threads:
    thread.start()
for i in range(24):
    w.assign(values[i % 6] * ones)
    if product(rows).numpy()[0, 0] / 512 != values[i % 6]:
        wrong.append(i)
done.set()
for thread in threads:
    thread.join()
print(wrong)
"""
    )
    assert lines[-1] == "[]"
