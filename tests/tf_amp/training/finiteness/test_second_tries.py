"""Gradients that no optimizer takes are right from the first step on, in float16.

At the first loss scale those of these programs overflow. What is compared with float32
is as exact as products of 16-bit operands are.
"""

import json

import pytest

from tests.forking import run_forked

# Rounded operands change a sum by about their rounding, each factor adding its own.
BOUND = 8 * 2.0**-11

PROGRAM = """
import json
import numpy as np
import tensorflow as tf
import tf_amp
from grappler_pass.annotations import SCALE_UPDATE
from grappler_pass.graph.walks import reached
from grappler_pass.rewriting import second_try
from tests.soundness import assert_valid

draw = np.random.default_rng(0)
W, V = (tf.Variable(draw.normal(size=(64, 64)).astype("float32")) for _ in range(2))
X = tf.constant(draw.normal(size=(8, 64)).astype("float32"))
DATA = tf.constant(draw.normal(size=(256, 32)).astype("float32"))
LABELS = tf.constant((draw.normal(size=(256, 1)) > 0).astype("float32"))
MIXED = tf.constant(draw.normal(size=(32, 32)).astype("float32") / 6)

def loss(x):
    return 10 * tf.reduce_sum(tf.matmul(tf.nn.tanh(tf.matmul(x, W) / 8), V))

def slope(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)

def log_density(w):
    logits = tf.matmul(tf.matmul(DATA, MIXED), w)
    terms = tf.nn.sigmoid_cross_entropy_with_logits(LABELS, logits)
    return -100 * tf.reduce_sum(terms) - 50 * tf.reduce_sum(w * w)

def saliency():
    return [tf.function(lambda x: slope(loss, x))(X)]

def of_a_persistent_tape():
    @tf.function
    def slopes(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            one, other = loss(x), loss(2 * x)
        return [tape.gradient(one, x), tape.gradient(other, x)]
    return slopes(X)

def behind_a_loop():
    def recurrent(x):
        step = lambda i, h: (i + 1, tf.nn.tanh(tf.matmul(h, W) / 8))
        return loss(tf.while_loop(lambda i, h: i < 3, step, (0, x))[1])
    return [tf.function(lambda x: slope(recurrent, x))(X)]

def behind_a_branch():
    @tf.function
    def slopes(x, chosen):
        def either(x):
            h = tf.cond(chosen, lambda: tf.matmul(x, W), lambda: 2 * tf.matmul(x, V))
            return loss(h / 8)
        return slope(either, x)
    return [slopes(X, tf.constant(chosen)) for chosen in (True, False)]

def within_a_branch():
    @tf.function
    def slopes(x, wanted):
        return tf.cond(wanted, lambda: slope(loss, x), lambda: tf.zeros_like(x))
    return [slopes(X, tf.constant(wanted)) for wanted in (True, False)]

def second_derivatives():
    def squares(x):
        return tf.reduce_sum(slope(loss, x) ** 2) / 100
    return [tf.function(lambda x: slope(squares, x))(X)]

def langevin():
    @tf.function
    def step(w, seed):
        noise = tf.random.stateless_normal(w.shape, seed)
        return w + 5e-5 * slope(log_density, w) + 1e-2 * noise
    w = tf.zeros([32, 1])
    for i in range(3):
        w = step(w, [i, 7])
    return [w]

def leapfrog(w, momentum):
    def body(i, w, momentum, gradient):
        momentum += 0.0025 * gradient
        w += 0.005 * momentum
        gradient = slope(log_density, w)
        return i + 1, w, momentum + 0.0025 * gradient, gradient
    given = (0, w, momentum, slope(log_density, w))
    return tf.while_loop(lambda i, *_: i < 5, body, given)[1:3]

accepted_by_turns = []

def hamiltonian():
    def energy(w, momentum):
        return tf.reduce_sum(momentum ** 2) / 2 - log_density(w)

    @tf.function
    def step(w, seed):
        momentum = tf.random.stateless_normal(w.shape, seed)
        moved, after = leapfrog(w, momentum)
        gain = energy(w, momentum) - energy(moved, after)
        accepted = tf.math.log(tf.random.stateless_uniform([], [1, seed[0]])) < gain
        return tf.where(accepted, moved, w), accepted, moved
    w, count, first = tf.zeros([32, 1]), 0, None
    for i in range(8):
        w, accepted, moved = step(w, tf.constant([i, 7]))
        first = moved if first is None else first
        count += float(accepted)
    accepted_by_turns.append(count)
    return [first]

def penalized(x):
    with tf.GradientTape() as outer:
        norm = tf.norm(slope(loss, x), axis=1)
        penalty = tf.reduce_sum((norm - 1.0) ** 2) / 1000
    return outer.gradient(penalty, [W, V])

def gradient_penalty():
    return tf.function(penalized)(X)

def penalty_applied_outside():
    before, penalty = [v.numpy() for v in (W, V)], tf.function(penalized)
    optimizer = tf.keras.optimizers.SGD(1e-3)
    optimizer.apply_gradients(zip(penalty(X), [W, V]))
    after = [v.numpy() for v in (W, V)]
    for variable, value in zip((W, V), before):
        variable.assign(value)
    return [b - a for a, b in zip(after, before)]

def in_a_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, X.shape)
        w = tf.constant(W_VALUE)
        y = 10 * tf.reduce_sum(tf.matmul(tf.nn.tanh(tf.matmul(x, w) / 8), w))
        gradient, = tf.gradients(y, [x])
        twice, = tf.gradients(tf.reduce_sum(gradient ** 2) / 100, [x])
        session.run(tf.compat.v1.global_variables_initializer())
        return [session.run(t, {x: X_VALUE}) for t in (gradient, twice, gradient)]

W_VALUE, X_VALUE = W.numpy(), X.numpy()
PROGRAMS = (
    saliency, of_a_persistent_tape, behind_a_loop, behind_a_branch,
    within_a_branch, second_derivatives, langevin, hamiltonian, gradient_penalty,
    penalty_applied_outside, in_a_session,
)

def numbers(results):
    return [np.array(r, np.float64) for r in results]

def error(found, known):
    return max(np.linalg.norm(f - k) / np.linalg.norm(k)
               for f, k in zip(found, known) if np.any(k) or np.any(f))

def counts():
    state = tf_amp.loss_scale_state()
    return state.scale, state.skipped_steps

def scale_lowered(program):
    if program is in_a_session:
        return program(), None
    if program is not saliency:
        tf_amp.set_loss_scale(2.0**15)
    results = program()
    return results, counts()

expected = {p.__name__: numbers(p()) for p in PROGRAMS}
tf_amp.enable("float16", opt_level="O2")
take = second_try.with_second_tries
changes = []

def check_order(before, after):
    # What has waited for the state of a loss scale to be adjusted waits for it still,
    # also where nothing overflows.
    sources = {
        node.name: [text.strip("^").split(":")[0] for text in node.input]
        for node in after.node
    }
    for name in sources:
        if name.startswith("tf_amp_again") and name.endswith("/overflow"):
            sources[name] = []
    for node in before.node:
        awaited = {i[1:] for i in node.input if i[0] == "^" and SCALE_UPDATE in i}
        if awaited and SCALE_UPDATE not in node.name:
            assert awaited <= set(reached([node.name], sources.__getitem__)), node.name

def observed(graph_def):
    changed = take(graph_def)
    changes.append(changed is not None)
    if changed is not None:
        assert_valid(changed)
        check_order(graph_def, changed)
        assert take(changed) is None
    return changed

second_try.with_second_tries = observed
for program in PROGRAMS:
    results, state = scale_lowered(program)
    made = error(numbers(results), expected[program.__name__])
    print(json.dumps([program.__name__, made, state]))
print(json.dumps(["hamiltonian accepts", *accepted_by_turns]))

def trained(by):
    changes.clear()
    by()
    print(json.dumps(["changes of " + by.__name__, sum(changes)]))

def optimizer():
    sgd = tf.keras.optimizers.SGD(1e-3)
    sgd.build([W])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = loss(x)
        sgd.apply_gradients([(tape.gradient(y, W), W)])
    step(X)

def assignment():
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = loss(x)
        V.assign_sub(1e-9 * tape.gradient(y, V))
    step(X)

def effects():
    @tf.custom_gradient
    def same(x):
        return x, lambda upstream: tf.numpy_function(np.copy, [upstream], tf.float32)

    @tf.function
    def slopes(x):
        return slope(lambda x: loss(same(x)), x)
    slopes(X)

trained(effects)
trained(optimizer)
trained(assignment)
trained(saliency)
"""

NAMES = """saliency of_a_persistent_tape behind_a_loop behind_a_branch
    within_a_branch second_derivatives langevin hamiltonian gradient_penalty
    penalty_applied_outside in_a_session""".split()


@pytest.fixture(scope="module")
def told():
    done = run_forked(PROGRAM, env={"TF_AMP_TUNE": "off", "TF_AMP_STRICT": "1"})
    assert "Traceback" not in done.err, done.err
    rows = [json.loads(line) for line in done.lines() if line.startswith("[")]
    return {name: values for name, *values in rows}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_that_a_program_uses_itself_are_those_of_float32(told, name):
    error, _ = told[name]
    assert error < BOUND


@pytest.mark.parametrize("name", NAMES)
def test_their_overflow_lowers_the_scale_and_skips_no_step(told, name):
    _, state = told[name]
    if state is not None:
        scale, skipped = state
        assert scale < 2.0**15
        assert skipped == 0


def test_a_hamiltonian_sampler_accepts_as_often_as_in_float32(told):
    in_float32, in_float16 = told["hamiltonian accepts"]
    assert in_float32 >= 6
    assert abs(in_float16 - in_float32) <= 1


def test_a_function_that_skips_its_step_keeps_its_graph(told):
    assert told["changes of saliency"] == [1]
    assert told["changes of optimizer"] == told["changes of assignment"] == [0]


def test_a_backward_pass_with_effects_runs_once(told):
    assert told["changes of effects"] == [0]


COMPILED = """
import tensorflow as tf
import tf_amp

tf_amp.enable("float16", opt_level="O2")
w = tf.Variable(tf.ones([64, 64]))

def slope(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((x @ w) @ w)
    return tape.gradient(loss, w)

@tf.function(jit_compile=True)
def step(x):
    w.assign_sub(1e-6 * slope(x))

@tf.function(jit_compile=True)
def saliency(x):
    return slope(x)

{call}(tf.ones([8, 64]))
"""


@pytest.mark.parametrize(("call", "is_told"), [("step", False), ("saliency", True)])
def test_xla_takes_nothing_again_and_it_is_said_what_to_do(call, is_told):
    done = run_forked(COMPILED.replace("{call}", call), env={"TF_AMP_TUNE": "off"})
    lines = [line for line in done.err.splitlines() if "(AMP301)" in line]
    assert [f"{call}, which XLA compiles" in line for line in lines] == [True] * is_told
    assert all('loss_scale="none"' in line for line in lines)


NOT_TAKEN_AGAIN = """
import tensorflow as tf

two = [tf.config.LogicalDeviceConfiguration()] * 2
cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, two)

import tf_amp

tf_amp.enable("float16", opt_level="O2")
w = tf.Variable(tf.ones([64, 64]))

def score(x):
    return tf.reduce_sum((x @ w) @ w, 1)

def slope(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(score(x))
    return tape.gradient(loss, w)

def jacobian():
    @tf.function
    def whole(x):
        with tf.GradientTape() as tape:
            y = score(x)
        return tape.jacobian(y, w)
    return whole

def vectorized():
    return tf.function(lambda x: tf.vectorized_map(lambda row: slope(row[None]), x))

def replicas():
    global w
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = tf.Variable(tf.ones([64, 64]))
    run = tf.function(lambda x: strategy.run(slope, (x,)))
    return lambda x: strategy.experimental_local_results(run(x))[0]

def outside_of_functions():
    function = tf.function(score)
    def whole(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(x))
        return tape.gradient(loss, w)
    return whole

def loop_of_frames():
    tf.compat.v1.disable_control_flow_v2()
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [8, 64])
        kernel = tf.Variable(tf.ones([64, 64]))
        body = lambda i, y: (i + 1, tf.nn.relu(y @ kernel))
        y = tf.while_loop(lambda i, _: i < 2, body, (0, x))[1]
        found = tf.gradients(y, x)[0]
        session = tf.compat.v1.Session()
        session.run(tf.compat.v1.global_variables_initializer())
    return lambda x: session.run(found, {"Placeholder:0": x.numpy()})

function = {call}()
results = [function(8 * tf.ones([8, 64])) for _ in range(18)]
print([bool(tf.reduce_all(tf.math.is_finite(each))) for each in results])
"""


@pytest.mark.parametrize(
    "call",
    [
        "jacobian",
        "vectorized",
        "replicas",
        "outside_of_functions",
        "loop_of_frames",
    ],
)
def test_where_nothing_is_taken_again_it_is_said_and_the_scale_falls(call):
    done = run_forked(
        NOT_TAKEN_AGAIN.replace("{call}", call), env={"TF_AMP_TUNE": "off"}
    )
    finite = json.loads(done.out.splitlines()[-1].lower())
    assert not finite[0] and finite[-1]
    (line,) = [line for line in done.err.splitlines() if "(AMP301)" in line]
    assert 'loss_scale="none"' in line
