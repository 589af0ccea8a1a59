"""Scopes: which functions, graphs and models they hold for, and how they nest."""

import concurrent.futures
import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_amp
from tests.forking import run_forked
from tf_amp.runtime import switch

# float32 keeps both low bits of VALUE, float16 one of them, bfloat16 none.
VALUE = 1 + 2**-9 + 2**-12
DTYPES = {1.0: "bfloat16", 1 + 2**-9: "float16", VALUE: "float32"}
X, EYE = np.eye(8, dtype="float32") * np.float32(VALUE), np.eye(8, dtype="float32")


pytestmark = pytest.mark.usefixtures("disabled_afterwards")


def scope(**settings):
    return tf_amp.mixed_precision_scope(**{"opt_level": "O2", **settings})


def product():
    return tf.function(lambda x, y: tf.nn.relu(x @ y))


def dtype_of(function):
    return DTYPES[float(function(tf.constant(X), tf.constant(EYE))[0, 0])]


def dtypes_in_plan(plan=None):
    """Return the type of each product of a plan, the latest, by the node's name."""
    rows = (plan or tf_amp.plans()[-1]).decisions
    products = [row for row in rows if row.op == "MatMul"]
    return {row.slot.node.split("/")[-1]: row.dtype for row in products}


def test_a_scope_holds_for_what_is_traced_inside_wherever_it_is_called():
    before = product()
    assert dtype_of(before) == "float32"
    with scope():
        inside = product()
        assert switch.current_config() is not None
        assert [dtype_of(inside), dtype_of(before)] == ["bfloat16", "float32"]
    assert not tf_amp.is_enabled()
    assert dtype_of(product()) == "float32"
    assert [dtype_of(inside), dtype_of(before)] == ["bfloat16", "float32"]


def test_the_inner_scope_wins_and_false_excludes():
    with scope():
        with scope(dtype="float16"):
            assert dtype_of(product()) == "float16"
            with scope(enabled=False):
                assert dtype_of(product()) == "float32"
                assert not tf_amp.is_enabled()
        assert dtype_of(product()) == "bfloat16"
    tf_amp.enable("float16", opt_level="O2")
    with scope(enabled=False):
        outside = product()
        assert dtype_of(outside) == "float32"
    assert [dtype_of(product()), dtype_of(outside)] == ["float16", "float32"]
    with tf_amp.mixed_precision_scope():
        assert switch.current_config().dtype == "float16"
        assert switch.current_config().opt_level == "O2"


def test_what_a_scope_excludes_adds_to_what_enable_does():
    tf_amp.enable(exclude=["^first"])
    with scope(exclude=["^second"]):
        assert switch.current_config().exclude == ("^first", "^second")


def test_a_scope_in_the_middle_of_a_function_holds_for_that_part():
    @tf.function
    def compute(x, y):
        first = tf.matmul(x, y, name="first")
        with scope():
            second = tf.matmul(first, y, name="second")
            with scope(enabled=False):
                third = tf.matmul(second, y, name="third")
            branch = tf.cond(x[0, 0] > 0, lambda: tf.matmul(third, y), lambda: third)
        return tf.matmul(branch, y, name="last")

    compute(tf.constant(X), tf.constant(EYE))
    types = dtypes_in_plan()
    assert types.pop("MatMul") == "bfloat16"
    assert types == {
        "first": "float32",
        "second": "bfloat16",
        "third": "float32",
        "last": "float32",
    }


def test_a_scope_in_a_function_does_not_hold_for_what_is_made_outside_of_it_meanwhile():
    seen = []

    @tf.function
    def compute(x):
        with scope():
            seen.append(tf_amp.is_enabled())
            with tf.init_scope():
                seen.append(tf_amp.is_enabled())
        return x

    compute(1.0)
    assert seen == [True, False]


def test_parts_of_a_function_in_different_scopes_are_rewritten_each_in_its_way():
    @tf.function
    def compute(x, y):
        with scope():
            x = tf.matmul(x, y, name="coarse")
        with scope(dtype="float16"):
            x = tf.matmul(tf.nn.tanh(x), y, name="fine")
        with scope(loss_scale=8.0):
            return tf.nn.tanh(tf.matmul(x, y, name="coarse_too"))

    compute(tf.constant(X), tf.constant(EYE))
    types = [dtypes_in_plan(plan) for plan in tf_amp.plans()]
    low = {n: d for plan in types for n, d in plan.items() if d != "float32"}
    assert len(types) == 2
    assert low == {"coarse": "bfloat16", "coarse_too": "bfloat16", "fine": "float16"}


def test_a_gradient_takes_the_setting_of_the_function_it_differentiates():
    with scope():
        inside = product()
        inside(tf.constant(X), tf.constant(EYE))
    y = tf.constant(EYE)
    with tf.GradientTape() as tape:
        tape.watch(y)
        result = inside(tf.constant(X), y)
    tape.gradient(result, y)
    assert tf_amp.plans()[-1].graph.startswith("__backward")


def test_a_graph_is_rewritten_as_it_was_built_and_gradients_take_it_along():
    def build(places):
        def around(place):
            return scope() if place in places else contextlib.nullcontext()

        graph = tf.Graph()
        with graph.as_default():
            x = tf.compat.v1.placeholder(tf.float32, [8, 8], "x")
            y = tf.compat.v1.get_variable("y", [8, 8])
            with around("model"):
                loss = tf.reduce_sum(tf.square(tf.matmul(x, y, name="forward")))
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
            with around("optimizer"):
                train = optimizer.minimize(loss)
            other = tf.matmul(x, y, name="other")
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                session.run([train, other], {x: X})
        return dtypes_in_plan()

    for places in (("model", "optimizer"), ("optimizer",)):
        assert build(places) == {
            "forward": "bfloat16",
            "MatMul_1": "bfloat16",
            "other": "float32",
        }


def test_a_model_that_is_fitted_in_a_scope_trains_in_mixed_precision():
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(8, name="kernel")])
    model.compile("sgd", "mse", jit_compile=False)
    with scope(exclude=["nothing_like_it"]):
        model.fit(X, EYE, verbose=0)
    assert "bfloat16" in dtypes_in_plan().values()
    assert all(w.dtype == "float32" for w in model.weights)


def test_a_model_that_is_compiled_in_a_scope_trains_in_it_wherever_it_is_fitted():
    dtypes = {}
    for module in (keras, tf_keras):
        dense = module.layers.Dense(8)
        model = module.Sequential([module.layers.Input([8]), dense])
        with scope():
            model.compile("sgd", "mse", jit_compile=False)
        count = len(tf_amp.plans())
        model.fit(X, EYE, verbose=0)
        assert len(tf_amp.plans()) == count + 1
        dtypes[module] = set(dtypes_in_plan().values())
        with scope(dtype="float16"):
            model.predict(X, verbose=0)
        model.compile("sgd", "mse", jit_compile=False)
        count = len(tf_amp.plans())
        model.fit(X, EYE, verbose=0)
        assert len(tf_amp.plans()) == count
    assert dtypes == {keras: {"bfloat16"}, tf_keras: {"bfloat16"}}


def test_replicas_of_a_mirrored_strategy_are_in_the_scopes_around_them():
    done = run_forked(
        """
        import tensorflow as tf, tf_amp
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        graph = tf.Graph()
        with graph.as_default(), tf_amp.mixed_precision_scope(), strategy.scope():
            with tf_amp.float32_scope():
                strategy.run(lambda: tf.matmul(tf.ones([2, 2]), tf.ones([2, 2])))
        made = [op for op in graph.get_operations() if op.type == "MatMul"]
        print(len(made), *(op.get_attr("_tf_amp_float32").decode() for op in made))
        print(len({op.get_attr("_tf_amp") for op in made} - {b""}))
        """
    )
    assert done.lines() == ["2 float32_scope() float32_scope()", "1"]


def test_threads_have_scopes_of_their_own():
    def work(number):
        dtype = ("bfloat16", "float16", None)[number % 3]
        if dtype is None:
            return dtype_of(product()) == "float32"
        shared = scopes[dtype]
        with shared, scope(dtype=dtype):
            return {dtype_of(product()) for _ in range(3)} == {dtype}

    scopes = {"bfloat16": scope(dtype="float16"), "float16": scope()}
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(12)))
    with scope(), concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(tf_amp.is_enabled).result() is False


def test_a_loss_scale_that_is_named_is_in_force_inside():
    with tf_amp.mixed_precision_scope(loss_scale=64.0):
        assert switch.current_config().loss_scale.value == 64.0
    with scope() as outer, scope(loss_scale="dynamic"):
        assert outer is not None
        first = product()
        second = scope(loss_scale=8)(product())
        both = tf.function(lambda x, y: first(x, y) + second(x, y) - second(x, y))
        assert dtype_of(both) == "bfloat16"
        assert set(dtypes_in_plan().values()) == {"bfloat16"}


def test_wrong_arguments_are_refused_where_they_are_given():
    for settings, parts in (
        ({"exclude": ["dense/(", "ok"]}, ("exclude", "'dense/('", "expression")),
        ({"exclude": [3]}, ("exclude", "3")),
        ({"exclude": 3}, ("exclude", "3")),
        ({"enabled": "yes"}, ("enabled", "yes", "True")),
        ({"loss_scale": print}, ("@mixed_precision_scope()",)),
    ):
        with pytest.raises(tf_amp.ConfigError) as caught:
            tf_amp.mixed_precision_scope(**settings)
        for part in parts:
            assert part in str(caught.value)

    def generator():
        yield 1

    for decorated in (generator, dict, "text"):
        with pytest.raises(tf_amp.ConfigError, match="decorate"):
            scope()(decorated)


def test_autocast_is_the_scope_by_another_name_and_takes_no_device():
    with tf_amp.autocast(tf.float16, opt_level="O2"):
        assert dtype_of(product()) == "float16"
    with pytest.raises(tf_amp.ConfigError, match="'cuda'; allowed are bfloat16, float"):
        tf_amp.autocast("cuda")


def test_a_scope_entered_twice_or_left_out_of_order_is_an_error():
    first, second = scope(dtype="float16"), tf_amp.float32_scope()
    with first:
        with pytest.raises(tf_amp.ScopeError, match=r"dtype='float16'.*second time"):
            first.__enter__()
        second.__enter__()
        with pytest.raises(tf_amp.ScopeError, match=r"before float32_scope\(\)"):
            first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        assert switch.current_config().dtype == "float16"
    with pytest.raises(tf_amp.ScopeError, match="not entered"):
        first.__exit__(None, None, None)
    with first:
        assert tf_amp.is_enabled()
    assert not tf_amp.is_enabled()


def test_an_error_inside_leaves_the_scope():
    with pytest.raises(ZeroDivisionError), scope():
        1 / 0  # noqa: B018
    assert not tf_amp.is_enabled()
    assert switch._open_scopes == 0


def is_stamped(function):
    """Return whether a function of two matrices is traced under settings."""
    spec = tf.TensorSpec([4, 4])
    graph = function.get_concrete_function(spec, spec).graph
    stamp = graph.get_operations()[0].get_attr("_tf_amp")
    return stamp.decode().partition(":")[0] not in ("", "off")


def test_a_decorated_function_is_traced_in_the_scope_of_each_call():
    def compute(x, y):
        # AutoGraph has to reach through the decorator.
        if tf.reduce_sum(x) > 0:
            x = x @ y
        return tf.nn.relu(x)

    within = tf.function(scope()(compute))
    around = scope(dtype="float16")(tf.function(compute))
    assert [dtype_of(within), dtype_of(around)] == ["bfloat16", "float16"]
    assert is_stamped(around)
    assert not tf_amp.is_enabled()

    @scope(dtype="float16")
    def recursive(depth):
        return recursive(depth - 1) if depth else switch.current_config().dtype

    assert recursive(3) == "float16"


def test_a_decorated_method_is_traced_in_the_scope_of_each_call():
    class Layer:
        factor = 1.0

        @scope(dtype="float16")
        @tf.function
        def compute(self, x, y):
            return tf.nn.relu(x @ y) * self.factor

    first, second = Layer(), Layer()
    second.factor = 0.0
    assert dtype_of(first.compute) == "float16"
    assert is_stamped(second.compute) and not tf_amp.is_enabled()
    ones = tf.ones([4, 4])
    products = [float(layer.compute(ones, ones)[0, 0]) for layer in (first, second)]
    assert products == [4.0, 0.0]
    assert float(Layer.compute(second, ones, ones)[0, 0]) == 0.0
