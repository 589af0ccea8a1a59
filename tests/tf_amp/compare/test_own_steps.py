"""Real calls tell whether 16 bits are faster, and the loser is not called again."""

from __future__ import annotations

import pathlib

import pytest

from tests.forking import run_tuned
from tf_amp.compare.own_steps import FLOAT32, StepComparison, Steps

# Predictions promise a gain that is in doubt; which instance is slow is injected: the
# constant `delay` of one instance says how long a function in its graph sleeps.
PRELUDE = """
import contextlib
import dataclasses
import sys
import time
import numpy as np
import tensorflow as tf
import tf_amp
from absl import logging
from grappler_pass.costs import CostModel
from tensorflow.core.framework.graph_pb2 import GraphDef
from tf_amp.rewriting import arriving_graphs as rewriter
from tf_amp.compare import alternation, call_sites

# Calls are not spread, so that comparisons are short however slow an instance is.
alternation._MOST_EXCESS = float("inf")
logging.set_verbosity(logging.INFO)
logging.use_absl_handler()
price = CostModel.price

def believed(self, call, dtype):
    float32 = price(self, call, "float32")
    share = 1.0 if dtype == "float32" else 0.4
    return float32._replace(seconds=share * float32.seconds, error=0.35)

CostModel.price = believed
slow, seconds = None, 0.1
rewrite = rewriter.rewrite_graph

def slowing(data, item):
    rewritten = rewrite(data, item)
    entry = call_sites.current()
    is_float32 = entry.is_float32 or entry.is_waiting
    label = "float32" if is_float32 else ""
    if label != slow:
        return rewritten
    graph_def = GraphDef.FromString(rewritten or data)
    for node in graph_def.node:
        if node.op == "Const" and node.name.endswith("delay"):
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto([seconds]))
    return graph_def.SerializeToString()

rewriter.rewrite_graph = slowing

def wait(x, delay):
    time.sleep(float(delay[0]))
    return x

A = np.full([384, 384], 1 / 256, np.float32)
count = tf.Variable(0)

def products(x, delay=True):
    if delay:
        x = tf.numpy_function(wait, [x, tf.constant([0.0], name="delay")], tf.float32)
        x.set_shape([384, 384])
    return (((x @ A) @ A) @ A) @ A

@tf.function
def step(x):
    count.assign_add(1)
    return products(x)

@contextlib.contextmanager
def labelled():
    labels, called = [], call_sites.call_as

    def noting(site, label, *args):
        labels.append(label)
        return called(site, label, *args)

    call_sites.call_as = noting
    try:
        yield labels
    finally:
        call_sites.call_as = called

def labels_of(calls, function=step, data=A):
    with labelled() as labels:
        for _ in range(calls):
            function(tf.constant(data))
    return labels

def in_session(noise=lambda: ()):
    '''Return what runs `step` in a finalized Session, and the Session.'''
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [384, 384])
        steps = v1.get_variable("steps", [], initializer=v1.zeros_initializer())
        fetches = [products(x), steps.assign_add(1.0), noise()]
        initialize = v1.global_variables_initializer()
        graph.finalize()
    session = v1.Session(graph=graph)
    session.run(initialize)
    return lambda *_: session.run(fetches, {x: A}), session, x, fetches
"""
# What is called in the tests below: a function, or a Session that is run.
WAYS = {"function": "call = step", "session": "call, *_ = in_session()"}
ways = pytest.mark.parametrize("way", WAYS)


def run(code: str, cache: pathlib.Path, **env: str) -> list[str]:
    """Return what a program prints."""
    return run_tuned(PRELUDE + code, cache, **env)


@ways
@pytest.mark.parametrize("slow", ["mixed", "float32"])
def test_the_slow_instance_is_not_called_again_nor_in_the_next_process(
    slow: str, way: str, tmp_path: pathlib.Path
) -> None:
    code = f"""
slow = {"" if slow == "mixed" else "float32"!r}
tf_amp.enable(dtype="bfloat16")
{WAYS[way]}
with labelled() as labels:
    taken = [call(tf.constant(A) if call is step else A) for _ in range(60)]
print("float32" in labels[:30], set(labels[-20:]), len(tf_amp.plans()))
print(int(count) if call is step else int(taken[-1][1]))
"""
    first, second = (run(code, tmp_path)[-2:] for _ in range(2))
    winner, plans = ("float32", 0) if slow == "mixed" else ("", 1)
    assert first == [f"True {{{winner!r}}} {plans}", "60"]
    # What is float32 from the start has one instance.
    assert second == [f"False {{''}} {plans}", "60"]


@ways
@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize("broken", ["mixed", "float32"])
def test_an_error_of_one_instance_leaves_the_job_running_on_the_other(
    broken: str, first: int, way: str, tmp_path: pathlib.Path
) -> None:
    lines = run(
        f"""
slow, seconds = {"" if broken == "mixed" else "float32"!r}, -1.0
calls_of_broken = []

def wait(x, delay):
    calls_of_broken.extend([1] * int(delay[0] < 0))
    if delay[0] < 0 and len(calls_of_broken) >= {first}:
        raise MemoryError("planted")
    return x

tf_amp.enable(dtype="bfloat16")
{WAYS[way]}
labels = labels_of(30, call)
print(set(labels[-4:]), len(tf_amp.plans()))
""",
        tmp_path,
    )
    winner, plans = ("float32", 0) if broken == "mixed" else ("", 1)
    assert lines[-1] == f"{{{winner!r}}} {plans}"


@ways
def test_what_may_well_gain_nothing_begins_in_float32(
    way: str, tmp_path: pathlib.Path
) -> None:
    lines = run(
        f"""
CostModel.price = lambda *args: believed(*args)._replace(error=3.0)
plain = step(tf.constant(A)).numpy()
step = tf.function(step.python_function)
tf_amp.enable(dtype="bfloat16")
slow = "float32"
{WAYS[way]}
with labelled() as labels:
    found = [call(tf.constant(A) if call is step else A) for _ in range(20)]
    found = [np.asarray(each if call is step else each[0]) for each in found]
    print(all((each == plain).all() for each in found), len(tf_amp.plans()))
    for _ in range(50):
        call(tf.constant(A) if call is step else A)
print(labels[20:22], sorted(set(labels)), set(labels[-20:]))
print(tf_amp.plans()[0].summary().rpartition("; ")[2])
""",
        tmp_path,
    )
    assert lines[-3] == "True 0"
    assert lines[-2] == "['16 bits', '16 bits'] ['', '16 bits'] {'16 bits'}"
    assert lines[-1].startswith("in doubt: ")


def test_errors_of_the_program_are_its_own(tmp_path: pathlib.Path) -> None:
    lines = run(
        """
calls = []

def wait(x, delay):
    calls.append(1)
    if len(calls) % 2 == 0:
        raise ValueError("of the program")
    return x

tf_amp.enable(dtype="bfloat16")
raised = 0
for _ in range(40):
    try:
        step(tf.constant(A))
    except tf.errors.InvalidArgumentError:
        raised += 1
print(raised, len(calls))
""",
        tmp_path,
    )
    assert lines[-1] == "20 40"


def test_each_trace_is_compared_by_itself_and_little_called_ones_are_not(
    tmp_path: pathlib.Path,
) -> None:
    lines = run(
        """
tf_amp.enable(dtype="bfloat16")

@tf.function(reduce_retracing=False)
def other(x):
    return products(x, delay=False)

for rows in (384, 512):
    print("float32" in labels_of(80, other, np.ones([rows, 384], np.float32)))
print("float32" in labels_of(4))
""",
        tmp_path,
    )
    assert lines[-3:] == ["True", "True", "False"]


def test_of_equal_instances_float32_stays(tmp_path: pathlib.Path) -> None:
    lines = run(
        """
rewriter.rewrite_graph = lambda data, item: rewrite(data, item) and None
tf_amp.enable(dtype="bfloat16")
wait = lambda x, delay: (time.sleep(0.05), x)[1]
labels = labels_of(30)
while len(set(labels[-20:])) > 1:
    labels += labels_of(20)
print(set(labels[:30]) >= {"", "float32"}, set(labels[-20:]), len(tf_amp.plans()))
""",
        tmp_path,
    )
    assert lines[-1] == "True {'float32'} 0"


PATHS = """
import re
import keras
x = np.random.default_rng(0).normal(size=(1920, 384)).astype(np.float32)

def compiled(**options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(384) for _ in range(3)])
    model.compile("sgd", "mse", jit_compile=False, **options)
    return model

def fitted(**options):
    model = compiled(**options)
    found = model.fit(x, x, batch_size=64, epochs=3, verbose=0, shuffle=False)
    assert model.optimizer.iterations.numpy() == 90
    return found.history["loss"]

def evaluated():
    return compiled().evaluate(x, x, batch_size=32, verbose=0)

def predicted():
    return compiled().predict(x, batch_size=32, verbose=0)

def trained_on_batches():
    model = compiled()
    return [model.train_on_batch(x[:64], x[:64]) for _ in range(60)][-1]

def restored():
    model = compiled()
    model.build((None, 384))
    tf.saved_model.save(model, folder)
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    return [next(iter(serve(tf.constant(x[:64])).values())) for _ in range(60)][-1]

def under_a_tape():
    weight = tf.Variable(A)

    @tf.function
    def product(x):
        return (((x @ weight) @ A) @ A) @ A

    for _ in range(60):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(product(tf.constant(A)) ** 2)
        weight.assign_sub(1e-6 * tape.gradient(loss, weight))
    return weight

plain = np.array({path})
tf_amp.enable(dtype="bfloat16")
compared, called = set(), call_sites.call_as

def noting(site, label, *args):
    if label:
        words = re.findall("forward|backward|[a-z]+(?:_[a-z]+)+|product", site.name)
        compared.add(" ".join(words).removeprefix("inference_"))
    return called(site, label, *args)

call_sites.call_as = noting
found = np.array({path})
print(np.abs(found - plain).max() < 0.01 * np.abs(plain).max())
print(", ".join(sorted(compared)))
"""


@pytest.mark.parametrize(
    ("path", "compared"),
    [
        ("fitted()", "multi_step_on_iterator"),
        ("fitted(steps_per_execution=3)", "multi_step_on_iterator"),
        ("evaluated()", "multi_step_on_iterator"),
        ("predicted()", "one_step_on_data_distributed"),
        ("trained_on_batches()", "one_step_on_data"),
        ("restored()", "signature_wrapper_serving_default"),
        ("under_a_tape()", "backward product, forward product"),
    ],
)
def test_results_through_a_comparison_are_those_of_float32(
    path: str, compared: str, tmp_path: pathlib.Path
) -> None:
    folder = str(tmp_path / "saved")
    code = f"folder = {folder!r}\n" + PATHS.replace("{path}", path)
    lines = run(code, tmp_path)
    assert lines[-2:] == ["True", compared]


def test_threads_partial_runs_and_callables_go_on(tmp_path: pathlib.Path) -> None:
    lines = run(
        """
import concurrent.futures
from tf_amp.compare import own_steps

tf_amp.enable(dtype="bfloat16")
step(tf.constant(A))
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    results = list(pool.map(lambda _: step(tf.constant(A)).numpy()[0, 0], range(60)))
print(len(results), count.numpy(), max(results) < 1.05 * min(results))

# A GPU is awaited in eager mode alone; a Session has waited.
own_steps._has_other_devices = lambda: True
call, session, x, (y, steps, _) = in_session()
with session, concurrent.futures.ThreadPoolExecutor(4) as pool:
    results = list(pool.map(lambda _: call()[0][0, 0], range(60)))
    handle = session.partial_run_setup([y], [x])
    partial = session.partial_run(handle, y, {x: A})
    by_callable = session.make_callable(y, [x])(A)
    print(max(results) < 1.05 * min(results), session.run(steps))
    print(abs(partial / by_callable - 1).max() < 0.05)
""",
        tmp_path,
    )
    assert lines[-3:] == ["60 61 True", "True 61.0", "True"]


@pytest.mark.parametrize("setting", ["determinism", "tuning off"])
def test_under_determinism_and_without_tuning_nothing_is_compared(
    setting: str, tmp_path: pathlib.Path
) -> None:
    before = "tf.keras.utils.set_random_seed(1); "
    before += "tf.config.experimental.enable_op_determinism()"
    code = f"""
{before if setting == "determinism" else ""}
tf_amp.enable(dtype="bfloat16")
print(set(labels_of(20)))
"""
    tune = {"TF_AMP_TUNE": "off"} if setting == "tuning off" else {}
    assert run(code, tmp_path, **tune)[-1] == "{''}"


def test_what_is_not_remembered_is_said_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(is_faster: bool, steps: Steps) -> None:
        raise OSError("planted")

    comparison = StepComparison(name="__inference_step_7")
    comparison.when_decided(fail)
    assert comparison.failed(lambda label: label) == FLOAT32
    assert "__inference_step_7" in caplog.text
    assert "OSError: planted" in caplog.text and "TF_AMP_TUNE=off" in caplog.text


DROPOUT = """
CostModel.price = lambda *args: believed(*args)._replace(error={error})
{seed}

def masks():
    found = []

    @tf.function
    def product(x):
        ones = tf.clip_by_value(1e9 * products(x, delay=False), 1.0, 1.0)
        return tf.nn.dropout(ones, 0.5)

    labels = labels_of(40, lambda x: found.append(product(x).numpy()))
    return found, sorted(set(labels))

plain, _ = masks()
{seed}
tf_amp.enable(dtype="bfloat16")
found, labels = masks()
equal = all((a == b).all() for a, b in zip(plain, found, strict=True))
print(equal, labels, len(tf_amp.plans()))
"""


@pytest.mark.parametrize(
    ("error", "seed", "told"),
    [
        (0.5, "tf.random.set_seed(1)", "True [''] 1"),
        (3.0, "tf.random.set_seed(1)", "True [''] 0"),
        # Fresh random numbers may come from either instance.
        (0.5, "", "False ['', 'float32']"),
    ],
)
def test_random_numbers_under_a_seed_are_the_same_since_nothing_is_compared(
    error: float, seed: str, told: str, tmp_path: pathlib.Path
) -> None:
    line = run(DROPOUT.format(error=error, seed=seed), tmp_path)[-1]
    assert line.startswith(told)


def test_instances_of_a_session_share_seeded_draws_queues_and_variables(
    tmp_path: pathlib.Path,
) -> None:
    lines = run(
        """
slow = ""
tf_amp.enable(dtype="bfloat16")

def noise():
    queue = tf.queue.FIFOQueue(100, [tf.float32])
    draws = tf.random.uniform([], seed=7)
    with tf.control_dependencies([queue.enqueue(draws)]):
        return queue.size(), draws

def results_of():
    call, session, *_ = in_session(noise)
    with session, labelled() as labels:
        results = [call() for _ in range(40)]
    print("float32" in labels)
    return [(row[1], *row[2]) for row in results]

compared = results_of()
tf_amp.disable()
print(compared == results_of(), int(compared[-1][0]), int(compared[-1][1]))
""",
        tmp_path,
    )
    assert lines[-3:] == ["True", "False", "True 40 40"]


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

site = call_sites.CallSite(is_run=True)
for op in ("CudnnRNNV3", "MatMul"):
    for dtype in (tf.float32, tf.float16):
        before, after = (graph_def(d, op) for d in (tf.float32, dtype))
        trial = Trial(before, after, None, {}, 0.0, 0.0)
        print(op, dtype.name, site.has_instances(trial))
""",
        tmp_path,
    )
    assert lines[-4:] == [
        "CudnnRNNV3 float32 True",
        "CudnnRNNV3 float16 False",
        "MatMul float32 True",
        "MatMul float16 True",
    ]


# Functions of one line each, called so often, and what is alive of their comparisons.
FUNCTIONS = """
import gc

def called(times):
    few = tf.function(lambda x: products(x, delay=False))
    for _ in range(times):
        few(tf.constant(A))
    return few

def alive():
    for _ in range(2):
        gc.collect()
    names = [type(each).__name__ for each in gc.get_objects()]
    return [names.count(name) for name in ("StepComparison", "Draft", "Trial")]

tf_amp.enable(dtype="bfloat16")
"""


def test_functions_called_a_few_times_leave_nothing(tmp_path: pathlib.Path) -> None:
    lines = run(
        f"""
{FUNCTIONS}
kept = called(5)
print(alive())
sites = len([*call_sites.all_sites()])
for _ in range(4):
    called(5)
print(alive(), len([*call_sites.all_sites()]) - sites)
""",
        tmp_path,
    )
    assert lines[-2:] == ["[1, 1, 0]", "[1, 1, 0] 0"]


@pytest.mark.parametrize("limit", ["MOST_IDLE_SECONDS = 0.0", "MOST_UNDECIDED = 1"])
def test_what_is_not_called_any_more_is_not_compared_any_more(
    limit: str, tmp_path: pathlib.Path
) -> None:
    lines = run(
        f"""
{FUNCTIONS}
call_sites.{limit}
kept = [called(5) for _ in range(3)]
compared = [site.comparison for site in call_sites.all_sites()]
print(sum(each is not None for each in compared))
del compared
print(alive())
# The first goes on as prices have decided.
print(set(labels_of(40, kept[0])))
""",
        tmp_path,
    )
    assert lines[-3:] == ["1", "[1, 1, 0]", "{''}"]


def test_a_verdict_needs_no_graphs(tmp_path: pathlib.Path) -> None:
    lines = run(f"{FUNCTIONS}\nkept = called(60)\nprint(alive()[1:])\n", tmp_path)
    assert lines[-1] == "[0, 0]"
