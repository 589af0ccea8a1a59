"""Graphs divided between two unlike devices, of which falsified profiles tell."""

from __future__ import annotations

from tests.two_cpus import run_on_two

# Two devices that are one CPU: the profiles alone make them unlike.
_BEFORE = """
import copy
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
UNLIKE = {"CPU:0": SLOW, "CPU:1": FAST}
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

def stepping():
    return graph_of(lambda x: tf.identity(step(x), name="out"))

def places(graph_def, op="MatMul"):
    return [n.device[-5:] or "home" for n in graph_def.node if n.op == op]

def types(graph_def):
    return {n.attr["T"].type for n in graph_def.node if n.op == "MatMul"}
"""


def run(program: str) -> None:
    run_on_two(program, _BEFORE)


def test_products_move_to_the_device_that_is_fast_in_16_bits_where_that_pays() -> None:
    run(
        """
        graph_def = stepping()
        given = graph_def.SerializeToString(deterministic=True)
        placed = precision_affinity(UNLIKE).place(graph_def, ["out"])
        assert places(placed.graph_def) == ["CPU:1"] * 4
        assert placed.seconds_after < placed.seconds_before
        assert types(placed.graph_def) == {tf.bfloat16.as_datatype_enum}
        assert [n.device for n in placed.graph_def.node if n.name == "out"] == [""]
        with tf.compat.v1.Session(graph=tf.Graph()) as session:
            tf.graph_util.import_graph_def(placed.graph_def, name="")
            result = session.run("out:0", {"x:0": np.eye(256) * VALUE})
            assert result[0, 0] == 2.0
        for link in ({"seconds_per_transfer": 1.0}, {"bytes_per_second": 1e5}):
            left = precision_affinity(UNLIKE, **link).place(graph_def, ["out"])
            assert places(left.graph_def) == ["home"] * 4 and left.moved == ()
            assert str(left).startswith("all stays on CPU:0: ")
        alike = precision_affinity({"CPU:0": SLOW, "CPU:1": SLOW})
        assert alike.place(graph_def, ["out"]).moved == ()
        assert graph_def.SerializeToString(deterministic=True) == given
        """
    )


def test_functions_and_sessions_within_run_divided_and_others_do_not() -> None:
    run(
        """
        tf_amp.enable()
        x = tf.eye(256) * VALUE
        function = tf.function(lambda x: step(x))
        with precision_affinity(UNLIKE) as affinity:
            assert float(function(x)[0, 0]) == 2.0
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                given = tf.compat.v1.placeholder(tf.float32, [256, 256])
                options = tf.compat.v1.RunOptions(output_partition_graphs=True)
                told = tf.compat.v1.RunMetadata()
                out = session.run(tf.identity(step(given)), {given: x.numpy()},
                                  options=options, run_metadata=told)
                ran = {n.device[-5:] for g in told.partition_graphs for n in g.node
                       if "MatMul" in n.op}
                assert out[0, 0] == 2.0 and ran == {"CPU:1"}
        count = len(affinity.placed)
        assert count >= 2 and len(affinity.placed[0].moved) > 3
        tf.function(lambda x: step(x) + 1.0)(x)
        assert len(affinity.placed) == count
        """
    )


def test_colocated_nodes_stay_together_and_pinned_ones_and_state_at_home() -> None:
    run(
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
        placed = precision_affinity(UNLIKE).place(graph_of(build), ["out"])
        nodes = placed.graph_def.node
        devices = {n.name: n.device[-5:] for n in nodes}
        assert [devices[name] for name in "abcd"] == ["CPU:1", "CPU:1", "", "CPU:0"]
        fixed = ("VarHandleOp", "ReadVariableOp", "RandomStandardNormal", "Placeholder")
        assert {n.device for n in nodes if n.op in fixed} == {""}
        """
    )


def test_unknown_devices_and_profiles_are_refused() -> None:
    run(
        """
        twice = "devices: received CPU:0, /device:CPU:0, where CPU:0 occurs twice. "
        split = "tf.config.set_logical_device_configuration splits one device into"
        for words, devices, options in (
            ("devices: there is no GPU:3;", {"CPU:0": SLOW, "GPU:3": FAST}, {}),
            (twice + split, {"CPU:0": SLOW, "/device:CPU:0": FAST}, {}),
            ("devices: received 1 of them (CPU:0);", {"CPU:0": SLOW}, {}),
            ("unknown device profile", {"CPU:0": SLOW, "CPU:1": "nobody"}, {}),
            ("bytes_per_second: received 0", UNLIKE, {"bytes_per_second": 0}),
            ("margin: received 1.5;", UNLIKE, {"margin": 1.5}),
        ):
            refused(words, precision_affinity, devices, **options)
        """
    )


def test_a_graph_at_hand_is_divided_under_the_settings_called_for_last() -> None:
    run(
        """
        def placed():
            placed = precision_affinity(UNLIKE).place(stepping(), ["out"])
            (dtype,) = types(placed.graph_def)
            return tf.as_dtype(dtype).name
        for dtype in ("float16", "bfloat16", "float16"):
            tf_amp.enable(dtype)
        assert placed() == "float16"
        with tf_amp.mixed_precision_scope(opt_level="O0"):
            assert placed() == "float32"
        assert placed() == "float16"
        """
    )
