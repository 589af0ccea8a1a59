"""A few dozen seeds of the fuzzer, and that it would notice a wrong rewriting."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.fusions import RULES
from tests import onednn, saving
from tests.equivalence import Baseline
from tests.forking import run_forked
from tests.fuzz_check import check_seed
from tests.random_graphs import random_graph
from tests.sketch import sketch
from tests.soundness import FLOAT32, assert_sound, assert_valid
from tf_amp.training import layer_fusions

# Small programs of Keras in which each fusion is found, while they are
# what they are; and those among which it is to be found otherwise.
FIRST_SEEDS = (169, 179, 194, 209)
FIRST_OF_KERAS, MOST_OF_KERAS = 165, 40


def test_random_programs_agree_before_and_after() -> None:
    totals = np.zeros(3)

    @settings(max_examples=8)
    @given(st.integers(0, 2**31))
    def run(seed: int) -> None:
        outcome = check_seed(seed)
        totals[:] += (1, outcome.rewritten > 0, outcome.chaotic)
        assert outcome.failures == ()

    run()
    programs, rewritten, chaotic = totals
    assert rewritten > programs / 2
    # Of these nothing but soundness is known.
    assert chaotic < programs / 4


REACHING = """
import itertools
from collections import Counter
from tests.fuzz_check import check_seed
from tests.random_graphs import is_of_keras

others = filter(is_of_keras, itertools.count(FIRST_OF_KERAS))
applied = Counter()
for seed in itertools.islice(itertools.chain(FIRST_SEEDS, others), MOST_OF_KERAS):
    outcome = check_seed(seed)
    assert outcome.failures == (), (seed, outcome.failures)
    applied.update(outcome.rules)
    if applied.keys() >= WANTED:
        break
print(sorted(WANTED - applied.keys()))
"""


@pytest.mark.long
def test_random_programs_of_keras_reach_each_rewrite_beside_types() -> None:
    known = {
        # There is no kernel for it without oneDNN.
        "WANTED": {*RULES}
        # No program has as many weights as it takes to share scalars, nor a recurrence
        # that is large enough.
        - {"shared_scalars", "recurrent_products", "loop_sums", "loop_products"}
        - {"weight_blocks"}
        - ({"layer_norms"} if not onednn.IS_ON else set()),
        "FIRST_SEEDS": FIRST_SEEDS,
        "FIRST_OF_KERAS": FIRST_OF_KERAS,
        "MOST_OF_KERAS": MOST_OF_KERAS,
    }
    given = "".join(f"{name} = {value!r}\n" for name, value in known.items())
    # A process in which a test has trained keeps no weights.
    assert run_forked(given + REACHING).lines() == ["[]"]


def test_a_random_program_that_holds_less_agrees_and_is_not_rewritten_again() -> None:
    # At one level, all that changes is what waits for what.
    with saving.share_of(2):
        outcome = check_seed(588, saves_memory=True)
    assert outcome.failures == () and outcome.again > 0


def test_a_random_recurrence_agrees_with_its_products_in_front_of_it() -> None:
    outcome = check_seed(7)
    assert outcome.failures == () and outcome.rules["recurrent_products"]


@pytest.mark.long
def test_a_kernel_that_is_traced_and_computes_otherwise_is_noticed(monkeypatch) -> None:
    # It normalizes by the statistics of a batch, and is to move averages of them.
    assert check_seed(174, ("bfloat16",)).failures == ()
    move = layer_fusions._move

    def move_further(average: object, value: tf.Tensor, momentum: float) -> None:
        move(average, 1.01 * value, momentum)

    monkeypatch.setattr(layer_fusions, "_move", move_further)
    (failure,) = check_seed(174, ("bfloat16",)).failures
    assert failure.startswith("as it was traced")


def test_a_split_node_may_wait_in_front_of_a_cast_within_it() -> None:
    assert check_seed(1848, ("bfloat16",)).failures == ()


def test_a_program_that_refuses_what_is_cast_by_hand_tells_nothing() -> None:
    # Its values leave the range of float16, and it checks for that.
    outcome = check_seed(3571, ("float16",))
    assert outcome.failures == () and outcome.chaotic
    assert not check_seed(3571, ("bfloat16",)).chaotic


def test_a_program_that_a_cpu_has_no_kernel_for_tells_nothing() -> None:
    # It takes gradients of a dilated convolution.
    outcome = check_seed(5410, ("bfloat16",))
    assert outcome.failures == ()
    assert outcome.chaotic or onednn.IS_ON


def test_a_seed_names_one_program() -> None:
    for seed in (*range(4), FIRST_OF_KERAS + 4):
        first, second = random_graph(seed), random_graph(seed)
        assert [(n.name, n.op) for n in first.graph_def.node] == [
            (n.name, n.op) for n in second.graph_def.node
        ]
        assert first.fetches == second.fetches


def product_program() -> Baseline:
    with sketch() as s:
        y = tf.tanh(tf.matmul(s.feed(4, 8), s.weight(8, 8), name="product"))
        program = s.program(tf.identity(y, name="fetch"))
    return Baseline.from_program(program, capture=False)


def test_the_error_model_notices_a_wrong_operand() -> None:
    baseline = product_program()
    wrong = copy.deepcopy(baseline.captured.graph_def)
    product = next(node for node in wrong.node if node.name == "product")
    product.attr["transpose_b"].b = True
    assert not baseline.compare(wrong, "bfloat16").ok
    assert baseline.compare(baseline.captured.graph_def, "bfloat16").ok


def test_the_error_model_notices_results_that_are_off_by_five_percent() -> None:
    baseline = product_program()
    results = [np.asarray(r) * np.float32(1.05) for r in baseline.results]
    assert not baseline.judge(lambda _: results, "bfloat16").ok


def test_the_error_model_rounds_within_functions_that_stay_functions() -> None:
    def body(x: tf.Tensor) -> tf.Tensor:
        # What rounding leaves of it hangs on that of the terms.
        return tf.tanh(x) * 16.0 - x * 16.0

    with sketch(v2_control_flow=True) as s:
        x = s.feed(4, 8)
        y = tf.cond(tf.reduce_sum(x) < 1e9, lambda: body(x), lambda: x)
        program = s.program(tf.identity(y, name="fetch"))
    baseline = Baseline.from_program(program, capture=False)
    ops = {node.op for node in baseline.captured.graph_def.node}
    assert "Tanh" not in ops and "StatelessIf" in ops
    controls = baseline.controls_of("bfloat16")
    assert all((c[0] != baseline.results[0]).any() for c in controls)


def take_out(graph_def: GraphDef, name: str) -> None:
    (number,) = (i for i, node in enumerate(graph_def.node) if node.name == name)
    del graph_def.node[number]


def retype(graph_def: GraphDef, name: str) -> None:
    (node,) = (node for node in graph_def.node if node.name == name)
    node.attr["T"].type = tf.bfloat16.as_datatype_enum


def add_a_constant(graph_def: GraphDef) -> None:
    node = graph_def.node.add(name=f"added{len(graph_def.node)}", op="Const")
    node.attr["dtype"].type = FLOAT32


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda g: take_out(g, "product"), ""),
        (lambda g: retype(g, "product"), ""),
        (lambda g: retype(g, "fetch"), ""),
        (lambda g: g.node.add(name="product"), ""),
        (add_a_constant, "a second run added"),
    ],
)
def test_soundness_notices_damage(damage: Callable, message: str) -> None:
    program = product_program().captured
    assert_valid(program.graph_def)

    def rewrite(graph_def: GraphDef) -> GraphDef:
        damaged = copy.deepcopy(graph_def)
        damage(damaged)
        return damaged

    with pytest.raises((AssertionError, KeyError), match=message):
        assert_sound(program.graph_def, rewrite, program.item)
