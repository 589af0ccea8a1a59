"""Equal reads become one without a change in what runs."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from benchmarks.executed import count_executed
from grappler_pass.annotations import FINITE_BRANCH
from grappler_pass.fusions import RULES
from grappler_pass.graph.view import Item
from grappler_pass.rewriting import loss_scales
from grappler_pass.rewriting.loss_scales import merge_equal_reads
from tests.branch_graphs import outcome
from tests.scaling import are_equal, values_of
from tests.soundness import assert_valid
from tests.text_graph import graph_from_text
from tf_amp import DynamicLossScale, loss_scale_state, mixed_precision_scope

# The rate is read twice before it is doubled and twice after it.
READS = """
    rate = VarHandleOp dtype=float32 shape=[] shared_name=rate
    two = Const value=2.0
    start = AssignVariableOp(rate, two)
    if/early = ReadVariableOp(rate, ^start)
    if/early_1 = ReadVariableOp(rate, ^start)
    three = Const value=3.0
    if/first = Mul(if/early, three)
    if/second = Sub(if/early_1, three)
    doubled = AddV2(if/early, if/early)
    write = AssignVariableOp(rate, doubled, ^start, ^if/early, ^if/early_1)
    if/late = ReadVariableOp(rate, ^write)
    if/late_1 = ReadVariableOp(rate, ^write)
    if/third = Mul(if/late, if/late_1)
    before = AddV2(if/first, if/second)
    out = AddV2(before, if/third)
"""
ASKED = Item(fetch=("out",))

# Three times round, each adds what the variable was, and then doubles it.
LOOP = """
    rate = VarHandleOp dtype=float32 shape=[] shared_name=looped
    two = Const value=2.0
    start = AssignVariableOp(rate, two)
    zero = Const(^start) value=0.0
    if/Enter = Enter(zero) frame_name=loop
    handle = Enter(rate) T=resource frame_name=loop is_constant=true
    limit = Const value=30.0
    bound = Enter(limit) frame_name=loop is_constant=true
    Merge = Merge(if/Enter, next) N=2
    Less = Less(Merge, bound)
    LoopCond = LoopCond(Less)
    Switch = Switch(Merge, LoopCond)
    body = Identity(Switch:1)
    if/read = ReadVariableOp(handle, ^body)
    if/read_1 = ReadVariableOp(handle, ^body)
    double = AddV2(if/read, if/read_1)
    write = AssignVariableOp(handle, double, ^if/read, ^if/read_1)
    sum = AddV2(body, double, ^write)
    next = NextIteration(sum)
    done = Exit(Switch)
    out = Identity(done)
"""

# Where nothing is read, nothing may run that waits for a read.
BRANCH = """
    rate = VarHandleOp dtype=float32 shape=[] shared_name=branching
    two = Const value=2.0
    start = AssignVariableOp(rate, two)
    taken = Placeholder dtype=bool
    seven = Const(^start) value=7.0
    pred = Switch(taken, taken, ^start) T=bool
    no = Identity(pred) T=bool
    yes = Identity(pred:1) T=bool
    if/yes = ReadVariableOp(rate, ^yes)
    if/yes_1 = ReadVariableOp(rate, ^yes)
    if/no = ReadVariableOp(rate, ^no)
    twice = AddV2(if/yes, if/yes_1)
    write = AssignVariableOp(rate, twice, ^if/yes, ^if/yes_1)
    minus = Neg(if/no)
    merged = Merge(twice, minus) N=2
    out = Identity(merged)
"""

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


def reads(graph_def):
    return [node.name for node in graph_def.node if node.op == "ReadVariableOp"]


IN_ANOTHER_ORDER = READS.replace(
    "if/late = ReadVariableOp(rate, ^write)",
    "if/late = ReadVariableOp(rate, ^write, ^start)",
).replace(
    "if/late_1 = ReadVariableOp(rate, ^write)",
    "if/late_1 = ReadVariableOp(rate, ^start, ^write)",
)
EARLY_AND_LATE = ["if/early", "if/late"]
# The graph, the reads that are left, and what it gives by what it is fed.
GRAPHS = {
    "at two moments": (READS, EARLY_AND_LATE, {None: 2 * 3 + (2 - 3) + 4 * 4}),
    "in another order": (IN_ANOTHER_ORDER, EARLY_AND_LATE, {None: 21}),
    # 4 + 8 + 16 + 32 is beyond 30; with the first round's value it would be 4 each.
    "in each round": (LOOP, ["if/read"], {None: 28 + 32}),
    "in two branches": (BRANCH, ["if/yes", "if/no"], {True: 4, False: -2}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_read_at_one_moment_is_read_once_and_runs_as_before(name):
    text, left, outcomes = GRAPHS[name]
    before = graph_from_text(text)
    given = before.SerializeToString()

    after = merge_equal_reads(before, "if/", ASKED)

    assert before.SerializeToString() == given
    assert_valid(after)
    assert reads(after) == left
    for taken, value in outcomes.items():
        feed = None if taken is None else {"taken:0": taken}
        assert outcome(after, feed) == outcome(before, feed) == value
    assert merge_equal_reads(after, "if/", ASKED) is None


def test_a_write_waits_for_the_read_that_stays():
    after = merge_equal_reads(graph_from_text(READS), "if/", ASKED)
    (write,) = (node for node in after.node if node.name == "write")
    assert list(write.input) == ["rate", "doubled", "^start", "^if/early"]


@pytest.mark.parametrize(
    "instead",
    [
        "if/early_1 = ReadVariableOp(rate, ^start, ^if/first)",
        "if/early_1 = ReadVariableOp(rate, ^start) @/device:CPU:0",
        "if/early_1 = ReadVariableOp(rate, ^start) _tf_amp_loss_scale=true",
        "elsewhere = ReadVariableOp(rate, ^start)",
    ],
)
def test_reads_stay_that_differ_in_more_than_their_names(instead):
    text = READS.replace("if/early_1 = ReadVariableOp(rate, ^start)", instead)
    if instead.startswith("elsewhere"):
        text = text.replace("if/early_1", "elsewhere")
    after = merge_equal_reads(graph_from_text(text), "if/", ASKED)
    assert len(reads(after)) == 3
    assert outcome(after) == outcome(graph_from_text(READS))


def test_a_read_stays_that_is_fetched_or_whose_device_others_are_to_share():
    graph_def = graph_from_text(READS)
    fetched = Item(fetch=("out", "if/early_1"))
    assert "if/early_1" in reads(merge_equal_reads(graph_def, "if/", fetched))

    last = graph_def.node[-1].attr["_class"].list.s
    last.append(b"loc:@if/early_1")
    assert "if/early_1" in reads(merge_equal_reads(graph_def, "if/", ASKED))
    for node in graph_def.node:
        node.device = "/device:CPU:0"
    after = merge_equal_reads(graph_def, "if/", ASKED)
    assert "if/early_1" not in reads(after)
    assert all("_class" not in node.attr for node in after.node)


@pytest.mark.parametrize("fed", ["if/early", "if/early_1"])
def test_a_read_that_is_fed_serves_nobody_but_its_own_readers(fed):
    before = graph_from_text(READS)
    after = merge_equal_reads(before, "if/", Item(fetch=("out",), feed=(fed,)))
    assert reads(after) == ["if/early", "if/early_1", "if/late"]
    given = {f"{fed}:0": 11.0}
    assert outcome(after, given) == outcome(before, given)


def test_a_session_may_feed_a_read():
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default(), mixed_precision_scope(dtype="float16", opt_level="O2"):
        rate = v1.get_variable("rate", initializer=2.0, use_resource=True)
        with tf.name_scope(FINITE_BRANCH):
            first, second = rate.read_value(), rate.read_value()
            total = 10.0 * tf.reshape(first, [1]) + tf.reshape(second, [1])
        read, other = first.op.inputs[0], second.op.inputs[0]
        assert read.op.type == other.op.type == "ReadVariableOp"
        with v1.Session() as session:
            session.run(rate.initializer)
            assert session.run(total, {read: 7.0}) == 72.0
            assert session.run(total, {other: 7.0}) == 27.0
            assert session.run(total) == 22.0


def test_reads_of_one_type_only_are_equal():
    # Which type a handle holds, the runtime looks up when it is read.
    text = """
        rate = Placeholder dtype=resource
        if/float = ReadVariableOp(rate) dtype=float32
        if/half = ReadVariableOp(rate) dtype=float16
        if/same = ReadVariableOp(rate) dtype=float32
        out = AddV2(if/float, if/same)
        other = Identity(if/half) T=float16
    """
    after = merge_equal_reads(graph_from_text(text), "if/", ASKED)
    assert reads(after) == ["if/float", "if/half"]
    assert_valid(after)


def trained(monkeypatch, merging):
    """Return the reads executed in a step, and all values after four."""
    if not merging:
        monkeypatch.setattr(loss_scales, "merge_equal_reads", lambda *given: None)
    rng = np.random.default_rng(1)
    x = tf.constant(rng.normal(size=(16, 4)), tf.float32)
    shapes = [(4, 8), (8,), (8, 8), (8, 1)]
    weights = [tf.Variable(rng.normal(size=s).astype("float32")) for s in shapes]
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    optimizer = keras.optimizers.Adam(rate, use_ema=True, ema_overwrite_frequency=2)
    optimizer.build(weights)
    loss_scale = DynamicLossScale(initial=2.0**10, growth_interval=2)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.tanh(x @ weights[0] + weights[1]) @ weights[2])
            loss = tf.reduce_mean((hidden @ weights[3]) ** 2)
        optimizer.apply(tape.gradient(loss, weights), weights)

    # The fusion merges the same reads, and would hide what is tested.
    others = set(RULES) - {"shared_scalars"}
    tf_amp.enable("float16", loss_scale=loss_scale, opt_level="O2", fuse=others)
    try:
        executed = count_executed(lambda: step(x), "ReadVariableOp")
        for factor in (np.inf, 1.0, -1.0):
            step(x * factor)
    finally:
        tf_amp.disable()
    assert int(optimizer.iterations) == 3
    assert loss_scale_state(loss_scale).skipped_steps == 1
    return executed, values_of([*weights, *optimizer.variables])


def test_a_step_of_an_optimizer_reads_less_and_ends_with_the_same_bits(monkeypatch):
    fewer, values = trained(monkeypatch, merging=True)
    more, expected = trained(monkeypatch, merging=False)
    assert are_equal(values, expected)
    # The step counter, for the rate and for Adam's two powers, once for each weight.
    assert fewer <= more - 2 * 3
