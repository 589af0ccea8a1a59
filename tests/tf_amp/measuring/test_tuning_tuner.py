"""What is measured first, what not again, and how several graphs take turns."""

from __future__ import annotations

import concurrent.futures as futures
import dataclasses
import threading
import time

import pytest
import tensorflow as tf

from grappler_pass.costs.database.price_list import Measured, Sample
from grappler_pass.costs.database.probes import cast_probe
from grappler_pass.planning.draft import Stake
from tests.lock_holding import lock_held
from tests.probe_samples import matmul, probe, probe_of_op
from tf_amp.measuring import progress, tuner
from tf_amp.measuring.budget import DEFAULT, Budget, Limits
from tf_amp.measuring.known_costs import GraphLedger, KnownCosts
from tf_amp.measuring.machine_turn import machine_turn
from tf_amp.measuring.sandbox import own_thread
from tf_amp.measuring.tuner import OnlineTuner

# On a busy machine the default would not suffice for everything.
NO_LIMITS = Limits()
SMALL = [matmul(size, 16, 16) for size in (8, 16, 24, 32)]


@pytest.fixture
def heard(monkeypatch):
    """Everything that measuring reports."""
    states = []

    def hear(note):
        if isinstance(note, progress.Measuring):
            states.append(note)

    monkeypatch.setattr(progress, "_readers", [hear])
    return states


@pytest.fixture
def state(monkeypatch):
    fresh = tuner._State()
    monkeypatch.setattr(tuner, "_state", fresh)
    return fresh


# Seconds a process has run for its share of them to be no limit.
_HOUR = 3600.0


def tuner_of(costs, limits=NO_LIMITS, **given):
    budget = Budget(limits, **given)
    return OnlineTuner(costs, budget.allowance("graph"))


def costs_of(folder=None):
    return KnownCosts.load("CPU", "this CPU", tf.__version__, folder)


def stakes_of(probes):
    return [Stake(each, 1.0 + number, "CPU") for number, each in enumerate(probes)]


def test_prices_are_measured_in_order_and_each_once(heard, state):
    costs = costs_of()
    stakes = [*stakes_of(SMALL), Stake(SMALL[0], 0.5, "CPU")]
    assert tuner_of(costs).measure(stakes, "bfloat16")
    ops = [row.probe for state in heard for row in state.rows]
    assert ops == [each for each in SMALL for _ in range(2)]
    assert [state.done for state in heard] == [0, 1, 2, 3, 4, 4]
    assert heard[-1].is_over
    for each in SMALL:
        for dtype in ("float32", "bfloat16"):
            assert costs.prices.get(each.key, dtype).seconds > 0.0


def test_what_is_known_is_not_measured_again(heard, state):
    costs = costs_of()
    sample = Sample(1.0, 1.0, 0.1, 10, 0.0)
    costs.prices.add(Measured(SMALL[0], dtype, sample) for dtype in ("float32",))
    casts = [cast_probe(64, "float32", "bfloat16")]
    first = tuner_of(costs).measure(stakes_of(SMALL[:1] + casts), "bfloat16")
    assert first and len(heard) == 4
    heard.clear()
    assert not tuner_of(costs).measure(stakes_of(SMALL[:1] + casts), "bfloat16")
    assert heard == []
    # Another type is not known yet.
    assert tuner_of(costs).measure(stakes_of(SMALL[:1]), "float16")


def unsure(each, dtype, seconds=1e3, count=1):
    """Return what a single run tells, or a busy machine."""
    return Measured(each, dtype, Sample(seconds, seconds, 0.3, count, 0.0))


@pytest.fixture
def unsure_costs(tmp_path):
    costs = costs_of(tmp_path)
    costs.add([unsure(SMALL[0], dtype) for dtype in ("float32", "bfloat16")])
    costs.keep()
    return costs_of(tmp_path)


def test_an_unsure_price_is_measured_again_once_in_a_process(
    heard, state, unsure_costs, tmp_path
):
    def measured():
        heard.clear()
        tuner_of(unsure_costs).measure(stakes_of(SMALL[:1]), "bfloat16")
        return [row.dtype for state in heard for row in state.rows]

    assert measured() == ["float32", "bfloat16"]
    for costs in (unsure_costs, costs_of(tmp_path)):
        assert costs.prices.get(SMALL[0].key, "float32").seconds < 1.0
    # It may be unsure still, and would be once more.
    unsure_costs.prices.add([unsure(SMALL[0], "float32")])
    assert measured() == []


def test_the_second_run_of_a_job_starts_at_once_whatever_its_prices(
    heard, state, unsure_costs
):
    one = tuner_of(unsure_costs, DEFAULT)
    assert not one.measure(stakes_of(SMALL[:1]), "bfloat16")
    assert heard == [] and one.allowance.budget.spent == 0.0


def test_of_two_prices_the_better_supported_is_used(unsure_costs, tmp_path):
    key = SMALL[0].key
    worse = Sample(2e3, 2e3, 0.9, 1, 1.0)
    unsure_costs.add([Measured(SMALL[0], "float32", worse)])
    assert unsure_costs.prices.get(key, "float32").seconds == 1e3
    # Another process has been luckier.
    other = costs_of(tmp_path)
    other.add([unsure(SMALL[0], "float32", 3e-3, count=100)])
    other.keep()
    unsure_costs.refresh()
    assert unsure_costs.prices.get(key, "float32").seconds == 3e-3


def test_an_op_is_measured_for_the_device_that_it_is_placed_on(heard, state, tmp_path):
    budget = Budget(NO_LIMITS)
    gpu = KnownCosts.load("GPU", "a GPU", tf.__version__, tmp_path)
    cpu = costs_of(tmp_path)
    one = OnlineTuner(gpu, budget.allowance("graph"), (cpu,))
    placed = Stake(SMALL[0], 1.0, "CPU", "/job:localhost/replica:0/task:0/device:CPU:0")
    assert one.measure([placed], "bfloat16")
    assert len(gpu.prices) == 0 and len(cpu.prices) == 2
    assert len(costs_of(tmp_path).prices) == 2
    heard.clear()
    absent = placed._replace(device="/device:TPU:0")
    assert not one.measure([placed, absent], "bfloat16")
    assert heard == []


def test_what_cannot_be_measured_is_not_tried_again(heard, state):
    costs = costs_of()
    broken = [probe("MatMul", (8, 16), (9, 8)), probe("Nowhere", (2,))]
    assert not tuner_of(costs).measure(stakes_of(broken), "bfloat16")
    assert len(heard) == 4
    assert not tuner_of(costs).measure(stakes_of(broken), "bfloat16")
    assert len(heard) == 4
    assert len(costs.prices) == 0


def test_a_second_process_with_the_same_cache_measures_nothing(tmp_path, heard, state):
    assert tuner_of(costs_of(tmp_path)).measure(stakes_of(SMALL), "bfloat16")
    heard.clear()
    # A new database and price list, as another process has.
    again = costs_of(tmp_path)
    assert len(again.prices) == 2 * len(SMALL)
    assert not tuner_of(again, DEFAULT).measure(stakes_of(SMALL), "bfloat16")
    assert heard == []
    other = dataclasses.replace(KnownCosts.load("CPU", "x", "1.0", tmp_path))
    assert len(other.prices) == 0


def test_no_more_is_measured_than_the_budget_allows(heard, state):
    costs = costs_of()
    now = [0.0]
    spent = tuner_of(costs, DEFAULT, clock=lambda: now[0], age=_HOUR)
    with spent.allowance.spending():
        now[0] += 2.99
    # What is left does not suffice to build a graph.
    assert spent.allowance.remaining() == pytest.approx(0.01)
    assert not spent.measure(stakes_of(SMALL), "bfloat16")
    assert heard == []
    assert tuner_of(costs).measure(stakes_of(SMALL[:1]), "bfloat16")


def test_measuring_takes_no_longer_than_what_some_steps_could_lose(heard, state):
    small = [Stake(each, 1e-5, "CPU") for each in SMALL]
    assert not tuner_of(costs_of(), DEFAULT, age=_HOUR).measure(small, "bfloat16")
    assert not heard
    # More seconds are worth it, and any where the user named a limit.
    many = [Stake(each, 0.1, "CPU") for each in SMALL]
    assert tuner_of(costs_of(), DEFAULT, age=_HOUR).measure(many, "bfloat16")
    assert tuner_of(costs_of(), Limits(per_process=20.0)).measure(small, "bfloat16")


def test_what_a_graph_has_taken_counts_against_what_is_at_stake(heard, state):
    budget = Budget(DEFAULT, age=_HOUR)
    costs, allowance = costs_of(), budget.allowance("graph")
    with allowance.spending():
        time.sleep(0.1)
    tuner = OnlineTuner(costs, allowance)
    assert not tuner.measure([Stake(SMALL[0], 0.005, "CPU")], "bfloat16")
    assert tuner.measure([Stake(SMALL[0], 0.1, "CPU")], "bfloat16")


def test_a_graph_that_had_its_time_in_an_earlier_process_starts_at_once(
    heard, state, tmp_path
):
    graph = tf.Graph()
    with graph.as_default():
        tf.linalg.matmul(tf.ones([8, 8]), tf.ones([8, 8]))
    now = [0.0]

    def in_a_new_process(graph_def):
        costs = costs_of(tmp_path)
        budget = Budget(DEFAULT, clock=lambda: now[0], age=_HOUR)
        allowance = budget.allowance("it", GraphLedger(costs, graph_def))
        return OnlineTuner(costs, allowance)

    first = in_a_new_process(graph.as_graph_def())
    assert first.allowance.remaining() == 3.0
    with first.allowance.spending():
        now[0] += 2.99
    # Not kept yet, as by a process that is killed: the next one may try as long.
    second = in_a_new_process(graph.as_graph_def())
    assert second.allowance.remaining() == 3.0
    first.allowance.keep()
    second = in_a_new_process(graph.as_graph_def())
    assert second.allowance.remaining() == 0.0
    assert not second.measure(stakes_of(SMALL[:1]), "bfloat16")
    other = in_a_new_process(tf.Graph().as_graph_def())
    assert other.measure(stakes_of(SMALL[:1]), "bfloat16")


def test_measuring_counts_against_the_budget(heard, state):
    budget = Budget(DEFAULT, age=_HOUR)
    one = OnlineTuner(costs_of(), budget.allowance("graph"))
    one.measure(stakes_of(SMALL), "bfloat16")
    assert budget.spent > 0.0
    assert budget.allowance("graph").remaining() == pytest.approx(
        max(3.0 - budget.spent, 0.0)
    )
    assert budget.allowance("other").remaining() == 3.0


def test_it_stops_when_the_program_wants_to_exit(heard, state, monkeypatch):
    stopping = threading.Event()
    monkeypatch.setattr(own_thread, "_leaving", stopping)
    progress.report_to(lambda note: stopping.set())
    assert not tuner_of(costs_of()).measure(stakes_of(SMALL), "bfloat16")
    assert [state.done for state in heard] == [0, 4]


def test_a_measurement_that_hangs_ends_tuning_and_not_the_job(state, monkeypatch):
    def hang(work, patience):
        raise own_thread.StuckError("a measurement has not ended")

    monkeypatch.setattr(tuner, "run_in_own_thread", hang)
    costs = costs_of()
    assert not tuner_of(costs).measure(stakes_of(SMALL), "bfloat16")
    monkeypatch.undo()
    assert state.is_broken


def test_threads_take_turns_and_each_gets_what_it_asked_for(heard, state):
    costs = costs_of()
    budget = Budget(Limits())
    barrier = threading.Barrier(6)

    def work(number):
        one = OnlineTuner(costs, budget.allowance(number))
        own = matmul(40 + number, 16, 16)
        barrier.wait(10.0)
        one.measure(stakes_of([*SMALL, own]), "bfloat16")
        return costs.is_known(own.key, "bfloat16")

    with futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6), timeout=60.0))
    # One begins only when the one before is over.
    begun = [number for number, state in enumerate(heard) if state.done == 0]
    assert len(begun) == 6
    assert all(heard[number - 1].is_over for number in begun[1:])
    rows = [row for state in heard for row in state.rows]
    assert len(rows) == len({(row.probe, row.dtype) for row in rows}) == 20


def test_processes_of_a_machine_take_turns_and_share_what_they_find(
    tmp_path, heard, state
):
    costs, other = costs_of(tmp_path), costs_of(tmp_path)
    with lock_held(tmp_path):
        short = Limits(per_graph=0.2)
        assert not tuner_of(costs, short).measure(stakes_of(SMALL[:1]), "bfloat16")
        assert heard == []
    # The lock goes with the process, however that ends.
    assert tuner_of(costs).measure(stakes_of(SMALL), "bfloat16")
    heard.clear()
    # Started before these were known, and told of them when its turn comes.
    assert len(other.prices) == 0
    assert tuner_of(other, DEFAULT, age=_HOUR).measure(stakes_of(SMALL), "bfloat16")
    assert heard == [] and len(other.prices) == 2 * len(SMALL)


def test_a_folder_that_admits_no_lock_stops_nobody(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    for folder in (None, occupied, occupied / "below"):
        with machine_turn(folder, 0.0) as is_mine:
            assert is_mine


def test_a_side_effect_that_is_at_stake_is_not_run(heard, state):
    calls = []
    counted = probe_of_op(
        lambda: tf.numpy_function(calls.append, [tf.ones([2])], tf.float32, False)
    )
    assert not tuner_of(costs_of()).measure(stakes_of([counted]), "bfloat16")
    assert calls == []
