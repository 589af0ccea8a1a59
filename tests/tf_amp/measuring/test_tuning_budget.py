"""How much time tuning may take, with a clock of the test's own."""

from __future__ import annotations

import concurrent.futures as futures
import math

import pytest
import tensorflow as tf

from grappler_pass.planning.draft import Stake
from tests.probe_samples import matmul
from tf_amp.measuring import tuner
from tf_amp.measuring.budget import DEFAULT, Budget, Limits, limits_of, process_age
from tf_amp.measuring.known_costs import GraphLedger, KnownCosts


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def spend(budget, clock, graph, seconds):
    with budget.spending(graph):
        clock.now += seconds


def test_a_graph_has_three_seconds_and_a_process_twenty(clock):
    budget = Budget(DEFAULT, clock, age=1000.0)
    for graph in range(7):
        assert budget.remaining(graph) == min(3.0, 20.0 - 2.5 * graph)
        spend(budget, clock, graph, 2.5)
        assert budget.remaining(graph) <= 0.5
    assert budget.remaining("another") == 2.5
    spend(budget, clock, "another", 4.0)
    assert (budget.remaining("another"), budget.remaining("last")) == (0.0, 0.0)


def test_a_tenth_of_the_time_since_the_start_may_be_spent(clock):
    assert 0.0 < process_age() < 86400.0
    budget = Budget(DEFAULT, clock, age=6.0)
    assert budget.remaining("graph") == pytest.approx(0.6)
    spend(budget, clock, "graph", 0.6)
    assert budget.remaining("graph") == pytest.approx(0.06)
    clock.now += 10.0
    assert budget.remaining("another") == pytest.approx(0.1 * 16.6 - 0.6)


def test_one_graph_that_comes_again_has_what_it_left(clock):
    budget = Budget(DEFAULT, clock, age=1000.0)
    first = budget.allowance(("dense", "dense_1"))
    with first.spending():
        clock.now += 2.0
    again = budget.allowance(("dense", "dense_1"))
    assert again.remaining() == 1.0
    assert budget.allowance(("other",)).remaining() == 3.0


def test_time_counts_that_ends_in_an_error(clock):
    budget = Budget(DEFAULT, clock)
    with pytest.raises(KeyError), budget.spending("graph"):
        clock.now += 1.0
        raise KeyError
    assert budget.spent == 1.0


def test_the_setting_says_which_limits_hold(clock):
    assert limits_of("off") is None
    assert limits_of("budget") == DEFAULT
    assert limits_of("budget:7.5") == Limits(per_process=7.5)
    assert limits_of("full") == Limits()
    # As long as can be waited for.
    assert 3600.0 < Budget(Limits(), clock).remaining("graph") < math.inf


def test_threads_lose_no_time_that_others_spend(clock):
    budget = Budget(Limits(per_process=1e9), clock)

    def work(graph):
        for _ in range(500):
            budget._spend(graph, 1.0)

    with futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert budget.spent == 4000.0


def test_graphs_without_number_do_not_fill_the_memory(clock):
    budget = Budget(DEFAULT, clock)
    for graph in range(1000):
        spend(budget, clock, graph, 0.0)
    assert len(budget._graphs) == 256


class Ledger:
    kept = 0.0

    def spent(self):
        return self.kept

    def keep(self, seconds):
        self.kept = seconds


@pytest.mark.parametrize("tune", ["budget:1", "full"])
def test_what_one_process_after_another_takes_adds_up(clock, tune):
    ledger = Ledger()
    for _ in range(3):
        allowance = Budget(limits_of(tune), clock).allowance("graph", ledger)
        assert allowance.remaining() >= 1.0
        spend(allowance.budget, clock, "graph", 1.0)
        allowance.keep()
    assert ledger.kept == 3.0


def test_a_graph_that_was_measured_for_starts_at_once_in_later_processes(clock):
    ledger = Ledger()
    first = Budget(DEFAULT, clock, age=6.0).allowance("graph", ledger)
    spend(first.budget, clock, "graph", 0.5)
    assert first.remaining() > 0.1
    first.keep()
    second = Budget(DEFAULT, clock, age=6.0).allowance("graph", ledger)
    assert second.remaining() == 0.0
    assert second.budget.remaining("another") == pytest.approx(0.6)


def test_waits_count_in_their_own_process_alone(clock):
    ledger = Ledger()
    first = Budget(DEFAULT, clock, age=1000.0).allowance("graph", ledger)
    assert first.remaining() == 3.0
    with first.waiting():
        clock.now += 1.5
    spend(first.budget, clock, "graph", 0.5)
    first.keep()
    assert first.remaining() == 1.0 and first.budget.spent == 2.0
    assert ledger.kept == 0.5


def test_prices_that_were_sought_in_vain_are_not_by_every_process(
    clock, tmp_path, monkeypatch
):
    def in_vain(work, patience):
        clock.now += 1.5

    def in_a_new_process():
        costs = KnownCosts.load("CPU", "this CPU", tf.__version__, tmp_path)
        ledger = GraphLedger(costs, tf.Graph().as_graph_def())
        allowance = Budget(DEFAULT, clock, age=60.0).allowance("graph", ledger)
        return tuner.OnlineTuner(costs, allowance)

    monkeypatch.setattr(tuner, "run_in_own_thread", in_vain)
    first = in_a_new_process()
    assert not first.measure([Stake(matmul(8, 8, 8), 1.0, "CPU")], "bfloat16")
    assert in_a_new_process().allowance.remaining() == 0.0
