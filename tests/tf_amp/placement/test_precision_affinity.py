"""Graphs divided between two unlike devices, of which falsified profiles tell."""

from __future__ import annotations

import textwrap

from tests.forking import run_forked

# Two devices that are one CPU: the profiles alone make them unlike.
_TWO = """
import copy
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_amp
from grappler_pass.costs import DeviceProfile
precision_affinity = tf_amp.placement.precision_affinity

def profile(name, float32, bfloat16):
    data = copy.deepcopy(dict(DeviceProfile.load("cpu-generic").data))
    data.update(name=name, classes={})
    data.pop("extends", None)
    roofline = data["roofline"]
    roofline["slowdown"] = {}
    roofline["overhead_seconds"] = 1e-6
    rates = {"float32": float32, "bfloat16": bfloat16, "float16": bfloat16}
    roofline["matrix_flops"] = rates
    roofline["vector_flops"] = {t: 1e11 for t in rates}
    roofline["bytes_per_second"] = {t: 1e11 for t in rates}
    return DeviceProfile.from_json(data)

SLOW, FAST = profile("slow", 1e10, 1e9), profile("fast", 1e10, 1e13)
VALUE = 1 + 2**-9 + 2**-12

def step(x):
    y = x
    for i in range(4):
        y = tf.matmul(y, tf.eye(256), name=f"product_{i}")
    return tf.exp(y * 0.0, name="float32_part") + tf.reduce_max(y)

def graph_of(build):
    with tf.Graph().as_default() as graph:
        build(tf.compat.v1.placeholder(tf.float32, [256, 256], "x"))
    return graph.as_graph_def()

def places(graph_def, op="MatMul"):
    return [n.device[-5:] or "home" for n in graph_def.node if n.op == op]
"""


def _output(program: str) -> list[str]:
    return run_forked(_TWO + textwrap.dedent(program)).lines()


def test_products_move_to_the_device_that_is_fast_in_16_bits_where_that_pays() -> None:
    lines = _output(
        """
        graph_def = graph_of(lambda x: tf.identity(step(x), name="out"))
        given = graph_def.SerializeToString(deterministic=True)
        fast = precision_affinity({"CPU:0": SLOW, "CPU:1": FAST})
        placed = fast.place(graph_def, ["out"])
        print(places(placed.graph_def), placed.seconds_after < placed.seconds_before)
        print({n.attr["T"].type for n in placed.graph_def.node if n.op == "MatMul"})
        print({n.device[-5:] for n in placed.graph_def.node if n.name == "out"})
        with tf.compat.v1.Session(graph=tf.Graph()) as session:
            tf.graph_util.import_graph_def(placed.graph_def, name="")
            result = session.run("out:0", {"x:0": tf_amp.__version__ and
                                           __import__("numpy").eye(256) * VALUE})
            print(float(result[0, 0]))
        for link in ({"seconds_per_transfer": 1.0}, {"bytes_per_second": 1e5}):
            far = precision_affinity({"CPU:0": SLOW, "CPU:1": FAST}, **link)
            left = far.place(graph_def, ["out"])
            print(places(left.graph_def), left.moved, str(left)[:21])
        alike = precision_affinity({"CPU:0": SLOW, "CPU:1": SLOW})
        print(alike.place(graph_def, ["out"]).moved)
        print(graph_def.SerializeToString(deterministic=True) == given)
        """
    )
    assert lines == [
        "['CPU:1', 'CPU:1', 'CPU:1', 'CPU:1'] True",
        "{14}",
        "{''}",
        "2.0",
        *["['home', 'home', 'home', 'home'] () all stays on CPU:0: m"] * 2,
        "()",
        "True",
    ]


def test_functions_and_sessions_within_run_divided_and_others_do_not() -> None:
    lines = _output(
        """
        import numpy as np
        tf_amp.enable()
        x = tf.eye(256) * VALUE
        function = tf.function(lambda x: step(x))
        with precision_affinity({"CPU:0": SLOW, "CPU:1": FAST}) as affinity:
            print(float(function(x)[0, 0]))
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                given = tf.compat.v1.placeholder(tf.float32, [256, 256])
                options = tf.compat.v1.RunOptions(output_partition_graphs=True)
                told = tf.compat.v1.RunMetadata()
                out = tf.identity(step(given))
                out = session.run(out, {given: x.numpy() if hasattr(x, "numpy") else x},
                                  options=options, run_metadata=told)
                ran = {n.device[-5:] for g in told.partition_graphs for n in g.node
                       if "MatMul" in n.op}
                print(float(out[0, 0]), ran)
        moved = [len(placed.moved) > 3 for placed in affinity.placed]
        print(moved[0], len(moved) >= 2)
        count = len(moved)
        tf.function(lambda x: step(x) + 1.0)(x)
        print(len(affinity.placed) == count)
        """
    )
    assert lines == ["2.0", "2.0 {'CPU:1'}", "True True", "True"]


def test_colocated_nodes_stay_together_and_pinned_ones_and_state_at_home() -> None:
    lines = _output(
        """
        def build(x):
            weights = tf.compat.v1.Variable(tf.eye(256), use_resource=True)
            seen = tf.random.normal([256, 256]) + x
            a = tf.matmul(seen, weights.read_value(), name="a")
            with tf.compat.v1.colocate_with(a, ignore_existing=True):
                b = tf.exp(a, name="b")
            with tf.compat.v1.colocate_with(x.op, ignore_existing=True):
                c = tf.matmul(b, b, name="c")
            with tf.device("CPU:0"):
                d = tf.matmul(b, b, name="d")
            tf.add_n([c, d], name="out")
        affinity = precision_affinity({"CPU:0": SLOW, "CPU:1": FAST})
        placed = affinity.place(graph_of(build), ["out"])
        devices = {n.name: n.device[-5:] for n in placed.graph_def.node}
        print([devices[name] for name in "abcd"])
        fixed = ("VarHandleOp", "ReadVariableOp", "RandomStandardNormal", "Placeholder")
        print({devices[n.name] for n in placed.graph_def.node if n.op in fixed})
        """
    )
    assert lines == ["['CPU:1', 'CPU:1', '', 'CPU:0']", "{''}"]


def test_unknown_devices_and_profiles_are_refused() -> None:
    lines = _output(
        """
        def refused(*args, **kwargs):
            try:
                precision_affinity(*args, **kwargs)
            except tf_amp.ConfigError as error:
                print(str(error).partition(";")[0])
        refused({"CPU:0": SLOW, "GPU:3": FAST})
        refused({"CPU:0": SLOW, "/device:CPU:0": FAST})
        refused({"CPU:0": SLOW})
        refused({"CPU:0": SLOW, "CPU:1": "nobody"})
        refused({"CPU:0": SLOW, "CPU:1": FAST}, bytes_per_second=0)
        refused({"CPU:0": SLOW, "CPU:1": FAST}, margin=1.5)
        """
    )
    assert lines[:3] == [
        "devices: there is no GPU:3",
        "devices: received CPU:0, /device:CPU:0, where CPU:0 occurs twice. "
        "tf.config.set_logical_device_configuration splits one device into several.",
        "devices: received 1 of them (CPU:0)",
    ]
    assert "unknown device profile" in lines[3]
    assert lines[4].startswith("bytes_per_second: received 0")
    assert lines[5] == "margin: received 1.5"


def test_a_graph_at_hand_is_divided_under_the_settings_called_for_last() -> None:
    lines = _output(
        """
        graph_def = graph_of(lambda x: tf.identity(step(x), name="out"))
        def show():
            placed = precision_affinity({"CPU:0": SLOW, "CPU:1": FAST}).place(
                graph_def, ["out"])
            types = {n.attr["T"].type for n in placed.graph_def.node
                     if n.op == "MatMul"}
            print(*(tf.as_dtype(each).name for each in types))
        for dtype in ("float16", "bfloat16", "float16"):
            tf_amp.enable(dtype)
        show()
        with tf_amp.mixed_precision_scope(opt_level="O0"):
            show()
        show()
        """
    )
    assert lines == ["float16", "float32", "float16"]
