"""Measuring from within whatever a program is doing, in processes of their own."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from tests.forking import run_forked_command
from tests.gelu_program import gelu_program
from tests.processes import run_python

# Every graph that TensorFlow optimizes waits for a measurement of its own.
WAITING = """
import contextlib, os, threading
os.environ["TF_AMP_TUNE"] = "full"
import numpy as np
import tensorflow as tf
tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2)
from grappler_pass import plugin
from grappler_pass.planning.draft import Stake
from tests.probe_samples import matmul
from tf_amp.measuring import process_costs
from tf_amp.config.amp_config import AmpConfig

config = AmpConfig.from_env()
sizes = iter(range(8, 10**6, 8))
measured = []

def optimize(data, item):
    probe = matmul(next(sizes), 16, 16)
    tuner = process_costs.tuner_for(config, "CPU", probe.key)
    measured.append(tuner.measure([Stake(probe, 1.0, "CPU")], "bfloat16"))

plugin.load(optimize)

def count(work):
    before = len(measured)
    work()
    new = measured[before:]
    return bool(new) and all(new)

x = tf.ones([8, 8])
multiply = lambda: tf.function(lambda a: tf.nn.relu(a @ a))
"""

CONTEXTS = """
print("function", count(lambda: multiply()(x)))

outer = tf.function(lambda a: multiply()(a) + 1.0)
print("nested", count(lambda: outer(x)))

def in_a_session(default):
    graph = tf.Graph()
    with graph.as_default():
        product = tf.nn.relu(tf.constant(np.eye(8)) @ tf.constant(np.eye(8)))
    with default(graph), tf.compat.v1.Session(graph=graph) as session:
        session.run(product)

print("session", count(lambda: in_a_session(lambda own: contextlib.nullcontext())))
print("own graph", count(lambda: in_a_session(tf.Graph.as_default)))
print("another graph", count(lambda: in_a_session(lambda _: tf.Graph().as_default())))

import keras
model = keras.Sequential([keras.Input([8]), keras.layers.Dense(8)])
model.compile("sgd", "mse", jit_compile=False)
print("fit", count(lambda: model.fit(x, x, verbose=0)))

barrier = threading.Barrier(8)
def trace():
    barrier.wait()
    for _ in range(2):
        multiply()(x)

def in_threads():
    threads = [threading.Thread(target=trace) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

print("threads", count(in_threads))
print("left", [t.name for t in threading.enumerate() if "tf-amp" in t.name])

from tf_amp.measuring import probe_timing as measuring
take_turns = measuring.take_turns
places = set()

def traced(series, end):
    for each in series:
        metadata = tf.compat.v1.RunMetadata()
        told = dict(options=tf.compat.v1.RunOptions(trace_level=3))
        each._session.run(each._last, run_metadata=metadata, **told)
        for device in metadata.step_stats.dev_stats:
            if any(stats.node_name.startswith("probe") for stats in device.node_stats):
                places.add(device.device.rpartition("/")[2])
    take_turns(series, end)

measuring.take_turns = traced
probe = matmul(8, 8, 8)
elsewhere = "/job:localhost/replica:0/task:0/device:CPU:1"
stakes = [Stake(probe, 1.0, "CPU", elsewhere), Stake(matmul(8, 9, 8), 1.0, "TPU")]
tuner = process_costs.tuner_for(config, "CPU", "elsewhere")
print("device", tuner.measure(stakes, "bfloat16"), places)
print("absent", tuner.measure(stakes, "bfloat16"))
measuring.take_turns = take_turns

# The lock is held by a thread that the child does not have.
from tf_amp.measuring import machine_turn
machine_turn._turn.lock.acquire()
child = os.fork()
if not child:
    os._exit(not machine_turn._turn.lock.acquire(timeout=1.0))
print("fork", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
machine_turn._turn.lock.release()

# The main thread ends while another one waits for a measurement.
started = threading.Event()
from tf_amp.measuring import progress
progress.report_to(lambda note: started.set() if hasattr(note, "done") else None)

def trace_on():
    while True:
        multiply()(x)

threading.Thread(target=trace_on, daemon=True).start()
started.wait()
print("leaving")
"""


def test_measuring_works_wherever_a_graph_is_met_and_ends_with_the_program():
    lines = run_python(WAITING + CONTEXTS).lines()
    assert lines == [
        "function True",
        "nested True",
        "session True",
        "own graph True",
        "another graph True",
        "fit True",
        "threads True",
        "left []",
        "device True {'device:CPU:1'}",
        "absent False",
        "fork 0",
        "leaving",
    ]


# Where 16 bits do not gain, no plan hangs on a price; here computed ones promise a gain
# that is in doubt, on every CPU. Measured ones count as they are.
IN_DOUBT = """
from grappler_pass.costs import CostModel

computed = CostModel._price

def promising(self, call, dtype, corrections):
    float32 = computed(self, call, "float32", corrections)
    share = 1.0 if dtype == "float32" else 0.4
    return float32._replace(seconds=share * float32.seconds, error=0.5)

CostModel._price = promising
"""
PRINT = """
import sys
print(tf_amp.explain(step, x).to_json())
sys.exit(3 if "fail" in sys.argv else 0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "train.py").write_text(gelu_program(IN_DOUBT, PRINT))
    return folder


def tf_amp_of(folder, *arguments, **settings):
    env = {f"TF_AMP_{name.upper()}": value for name, value in settings.items()}
    env["TF_AMP_CACHE"] = str(folder / "cache")
    return run_forked_command(("-m", "tf_amp", *arguments), cwd=folder, env=env)


def costs_measured(done):
    told = re.search(r"(\d+) costs measured; kept in", " ".join(done.err.split()))
    return int(told[1]) if told else 0


def test_what_was_tuned_once_is_known_from_then_on(folder):
    first = tf_amp_of(folder, "tune", "train.py", "fail")
    assert first.code == 3, first.err
    all_of_them = costs_measured(first)
    assert all_of_them, first.err
    again = tf_amp_of(folder, "tune", "train.py")
    assert again.code == 0, again.err
    # On a busy machine a few may have been left unsure.
    assert costs_measured(again) < all_of_them

    plain = tf_amp_of(folder, "train.py", tune="off")
    assert plain.lines() == again.lines()
    sources = [row["source"] for row in json.loads(plain.out)["decisions"]]
    assert "measured" in sources


def test_a_script_that_is_interrupted_is_said_to_be_resumed(folder):
    (folder / "stopped.py").write_text("raise KeyboardInterrupt")
    done = tf_amp_of(folder, "tune", "stopped.py")
    assert done.code == 130
    assert "the same command goes on from here" in done.err
    assert "nothing was left" not in done.err and "Traceback" not in done.err


def test_mistakes_about_tuning_are_said_in_one_line(folder):
    tune = ("tune", "train.py")
    for arguments, settings, part in (
        (("tune", "--seconds", "-3", "train.py"), {}, "received '-3'"),
        (("tune", "--seconds", "0", "train.py"), {}, "greater than 0"),
        (("tune", "nowhere.py"), {}, "nowhere.py"),
        (tune, {"device_profile": "v100"}, "TF_AMP_DEVICE_PROFILE=v100"),
        (tune, {"opt_level": "O2"}, "allowed is O1"),
        (("train.py",), {"tune": "budget:-3"}, "received 'budget:-3'"),
        (("train.py",), {"tune": "always"}, "off, budget, full"),
    ):
        done = tf_amp_of(folder, *arguments, **settings)
        assert done.code == 2, done.err
        assert part in done.err
        assert "Traceback" not in done.err
