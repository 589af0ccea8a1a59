"""Switching on and off, in processes of their own."""

import re

from tests.forking import run_forked
from tests.fresh_process import output_of
from tests.processes import ROOT, run_python


def test_settings_hold_for_functions_traced_under_them():
    lines = output_of(
        """
        from tensorflow.python.framework import ops
        from tensorflow.python.client import session
        from tensorflow.python.eager import context

        def patched_methods():
            in_calls = context.Context.call_function
            return ops.Graph._create_op_helper, session.BaseSession.__init__, in_calls

        original = patched_methods()
        early = product()
        early(X, EYE)
        tf_amp.enable(opt_level="O2")
        patched = ops.Graph._create_op_helper
        tf_amp.enable(opt_level="O2")
        print(ops.Graph._create_op_helper is patched, tf_amp.is_enabled())
        first, pending = product(), product()
        print(dtype_of(early), dtype_of(first))
        pending.get_concrete_function(X, EYE)

        tf_amp.enable("float16", opt_level="O2")
        second = product()
        print(dtype_of(first), dtype_of(second), dtype_of(pending))

        tf_amp.disable()
        later = product()
        print(original == patched_methods())
        print(dtype_of(later), dtype_of(second), tf_amp.is_enabled())
        tf_amp.disable()

        tf_amp.init(opt_level="O2")
        print(dtype_of(later), dtype_of(product()))
        tf_amp.enable(opt_level="O0")
        print(dtype_of(product()), len(tf_amp.plans()))
        """
    )
    assert lines == [
        "True True",
        "float32 bfloat16",
        "bfloat16 float16 bfloat16",
        "True",
        "float32 float16 False",
        "float32 bfloat16",
        "float32 4",
    ]


def test_a_session_takes_the_settings_in_force_when_it_is_made():
    lines = output_of(
        """
        tf.compat.v1.disable_eager_execution()
        def build():
            graph = tf.Graph()
            with graph.as_default():
                a = tf.compat.v1.placeholder(tf.float32, [8, 8], "a")
                b = tf.compat.v1.placeholder(tf.float32, [8, 8], "b")
                tf.nn.relu(tf.nn.relu(a @ b))
            return graph

        import numpy as np
        feed = {"a:0": np.eye(8) * VALUE, "b:0": np.eye(8)}
        def dtype_in(graph):
            with tf.compat.v1.Session(graph=graph) as session:
                value = session.run(graph.get_operations()[-1].outputs[0], feed)[0, 0]
            return DTYPES[float(value)]

        before = build()
        before.finalize()
        print(dtype_in(build()))
        tf_amp.enable(opt_level="O2")
        print(dtype_in(before), dtype_in(build()))
        tf_amp.disable()
        print(dtype_in(build()), dtype_in(before))
        """
    )
    assert lines == ["float32", "bfloat16 bfloat16", "float32 bfloat16"]


def test_fit_and_a_restored_model_are_rewritten_and_datasets_are_not(tmp_path):
    lines = output_of(
        f"""
        import keras, numpy as np
        tf_amp.enable(opt_level="O2")
        model = keras.Sequential([keras.Input([8]), keras.layers.Dense(8, "tanh")])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(np.ones([16, 8]), np.ones([16, 8]), verbose=0)
        print([plan.graph for plan in tf_amp.plans()])

        class Product(tf.Module):
            @tf.function(input_signature=[tf.TensorSpec([8, 8])] * 2)
            def __call__(self, x, y):
                return tf.nn.relu(x @ y)

        tf_amp.disable()
        tf.saved_model.save(Product(), {str(tmp_path)!r})
        print(dtype_of(tf.saved_model.load({str(tmp_path)!r})))
        tf_amp.enable(opt_level="O2")
        print(dtype_of(tf.saved_model.load({str(tmp_path)!r})))
        tf.saved_model.save(Product(), {str(tmp_path / "stamped")!r})

        count = len(tf_amp.plans())
        product_of_row = lambda i: tf.function(lambda x: x @ x)(X * tf.cast(i, X.dtype))
        list(tf.data.Dataset.range(3).map(product_of_row))
        print(len(tf_amp.plans()) - count)
        """
    )
    assert lines == ["['training step of `fit`']", "float32", "bfloat16", "0"]
    stamped = str(tmp_path / "stamped")
    lines = output_of(
        f"""
        print(dtype_of(tf.saved_model.load({stamped!r})))
        tf_amp.enable("float16", opt_level="O2")
        print(dtype_of(tf.saved_model.load({stamped!r})))
        """
    )
    assert lines == ["float32", "float16"]


def test_functions_traced_at_once_in_several_threads_keep_their_settings():
    lines = output_of(
        """
        import concurrent.futures as futures

        barrier = threading.Barrier(8)
        tf_amp.enable(opt_level="O2")

        def work(number):
            barrier.wait()
            seen = {dtype_of(product()) for _ in range(4)}
            if number == 0:
                for _ in range(20):
                    tf_amp.disable()
                    tf_amp.enable(opt_level="O2")
            return seen - {"float32"}

        with futures.ThreadPoolExecutor(8) as pool:
            seen = set().union(*pool.map(work, range(8)))
        print(seen, dtype_of(product()))
        """
    )
    assert lines == ["{'bfloat16'} bfloat16"]


def test_what_is_called_for_goes_before_the_environment(tmp_path):
    lines = output_of(
        """
        tf_amp.enable()
        print(dtype_of(product()), tf_amp.plans()[-1].opt_level)
        tf_amp.enable("bfloat16", log_dir=None)
        print(dtype_of(product()))
        lists = {"add": {"deny": ["MatMul"]}}
        tf_amp.enable(lists=lists)
        print(dtype_of(product()))
        for wrong in (
            {"dtype": "float8"},
            {"opt_level": "O7"},
            {"device_profile": "v1000"},
            {"lists": {"add": {"allow": ["NoSuchOp"]}}},
            {"lists": {"add": {"allow": ["Exp"], "deny": ["Exp"]}}},
        ):
            try:
                tf_amp.enable(**wrong)
            except tf_amp.ConfigError as error:
                print(str(error).splitlines()[0])
        print(dtype_of(product()))
        """,
        env={
            "TF_AMP_OPT_LEVEL": "O2",
            "TF_AMP_DTYPE": "float16",
            "TF_AMP_LOG": str(tmp_path),
        },
    )
    assert lines[:3] == ["float16 O2", "bfloat16", "float32"]
    for line, part in zip(
        lines[3:8], ("float8", "O7", "v100", "NoSuchOp", "Exp"), strict=True
    ):
        assert part in line
    # What was refused has changed nothing: the lists are still in force.
    assert lines[8] == "float32"
    written = sorted(re.sub(r"^\d+-", "", path.name) for path in tmp_path.iterdir())
    suffixes = ("after.pbtxt", "before.pbtxt", "plan.json", "plan.txt")
    assert written[:4] == [f"0001-function_at_line_11.{suffix}" for suffix in suffixes]


def test_devices_can_be_configured_after_enabling():
    program = """
        import tensorflow as tf, tf_amp
        tf_amp.enable(opt_level="O2")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, two)
        with tf.device("CPU:1"):
            tf.function(lambda x: tf.nn.relu(x @ x))(tf.ones([8, 8]))
        print(len(tf.config.list_logical_devices("CPU")), len(tf_amp.plans()))
    """
    assert run_forked(program).lines() == ["2 1"]


def test_import_is_quick_and_needs_no_tensorflow():
    program = """
        import sys, tf_amp
        heavy = {"tensorflow", "numpy", "scipy", "absl", "rich"}
        print(sorted(heavy & set(sys.modules)))
        # A program that names it may still configure TensorFlow's start.
        tf_amp.enable, tf_amp.init, tf_amp.disable, tf_amp.is_enabled, tf_amp.plans
        print("tensorflow" in sys.modules)
    """
    assert run_python(program).lines() == ["[]", "False"]


def test_a_missing_or_old_tensorflow_is_a_clear_error(tmp_path):
    old = tmp_path / "old" / "tensorflow"
    broken = tmp_path / "broken" / "tensorflow"
    for folder, text in (
        (old, "__version__ = '2.4.1'"),
        (broken, "raise ImportError('No module named tensorflow')"),
    ):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
    for folder, parts in (
        (old, ("2.4.1 is too old", "2.16", "pip install")),
        (broken, ("cannot be imported", "pip install tensorflow-cpu, or")),
    ):
        env = {"PYTHONPATH": f"{folder.parent}:{ROOT}"}
        done = run_python("import tf_amp; tf_amp.enable()", env=env)
        assert done.code == 1
        last = done.err.strip().splitlines()[-1]
        assert last.startswith("tf_amp.errors.TensorFlowMissingError:")
        for part in parts:
            assert part in last
