"""The cost database: what is kept, for whom, and which of two figures."""

import dataclasses
import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grappler_pass.costs.database.price_database import CostDatabase, costs_path
from grappler_pass.costs.database.records import (
    CostRow,
    Spending,
    Verdict,
    better,
    better_supported,
)
from tests.costs_examples import (
    DEVICE,
    VERSION,
    keep,
    measured,
    rows_of,
    sample,
    sizes_in,
)

positive = st.floats(1e-9, 1e3, allow_nan=False)
samples = st.builds(
    sample,
    positive,
    spread=st.floats(0, 2),
    count=st.integers(1, 1000),
    when=st.floats(0, 2e9),
)
verdicts = st.builds(
    functools.partial(Verdict, DEVICE, VERSION, "it"),
    st.booleans(),
    positive,
    positive,
    st.floats(0, 2e9),
)


@pytest.fixture
def path(tmp_path):
    return costs_path(tmp_path / "a cache")


def figure(database, elements):
    return database.load(DEVICE, VERSION).get(measured(elements).probe.key, "bfloat16")


def test_nothing_is_made_before_something_is_kept(path):
    database = CostDatabase(path)
    assert len(database.load(DEVICE, VERSION)) == 0
    assert database.verdict(DEVICE, VERSION, "fingerprint") is None
    assert database.rows() == []
    assert not path.parent.exists()


def test_what_is_kept_is_there_for_the_next_process(path):
    rows = [measured(1), measured(2), measured(2)._replace(dtype="float16")]
    CostDatabase(path).keep(rows_of(*rows))
    assert set(CostDatabase(path).load(DEVICE, VERSION)) == set(rows)


def test_figures_of_another_device_or_tensorflow_are_not_used(path):
    database = CostDatabase(path)
    verdict = Verdict(DEVICE, VERSION, "fingerprint", True, 1.5, 1.0, 1e9)
    keep(database, 1)
    database.keep([verdict])
    assert database.verdict(DEVICE, VERSION, "fingerprint") == verdict
    for device, version in ((DEVICE, "2.20.0"), (DEVICE.upper(), VERSION)):
        assert not sizes_in(database, device, version)
        assert database.verdict(device, version, "fingerprint") is None
    assert database.verdict(DEVICE, VERSION, "another") is None


def test_of_two_figures_the_better_supported_stays(path):
    database = CostDatabase(path)
    good, poor = sample(1e-3, spread=0.1, count=100), sample(2e-3, count=2)
    fresher = dataclasses.replace(good, seconds=3e-3, when=good.when + 1)
    for offered, stays in ((poor, poor), (good, good), (poor, good)):
        database.keep(rows_of(measured(1, offered)))
        assert figure(database, 1) == stays
    database.keep(rows_of(measured(1, fresher)))
    assert figure(database, 1) == fresher
    database.keep(rows_of(measured(1, good)))
    assert figure(database, 1) == fresher


def test_of_two_verdicts_the_newer_stays(path):
    database = CostDatabase(path)
    for when, faster in ((5.0, True), (9.0, False), (7.0, True)):
        database.keep([Verdict(DEVICE, VERSION, "it", faster, 1.1, 1.0, when)])
    newest = Verdict(DEVICE, VERSION, "it", False, 1.1, 1.0, 9.0)
    assert database.verdict(DEVICE, VERSION, "it") == newest


@given(samples, samples, samples)
def test_the_choice_of_a_figure_depends_on_no_order(a, b, c):
    assert better_supported(a, a) == a
    assert better_supported(a, b) == better_supported(b, a)
    assert better_supported(better_supported(a, b), c) == better_supported(
        a, better_supported(b, c)
    )


@given(samples, st.integers(2, 100))
def test_more_executions_and_a_smaller_spread_win(a, times):
    more = dataclasses.replace(a, count=a.count * times, when=0.0)
    assert better_supported(a, more) == more
    steadier = dataclasses.replace(a, spread=a.spread / 2, when=0.0)
    if steadier.spread > 0.02:
        assert better_supported(a, steadier) == steadier


@given(verdicts, verdicts)
def test_the_choice_of_a_verdict_depends_on_no_order(a, b):
    assert better(a, a) == a
    assert better(a, b) == better(b, a)


def test_clearing_removes_what_is_named_and_counts_it(path):
    database = CostDatabase(path)
    keep(database, 1, 2, 3)
    database.keep([CostRow("another", VERSION, measured(1))])
    database.keep([Verdict(DEVICE, VERSION, "it", True, 1.1, 1.0, 1.0)])
    assert database.clear({"device": "another"}) == 1
    assert sizes_in(database) == {1, 2, 3}
    assert database.clear() == 4
    assert database.rows() == []


def new_sizes(database):
    rows = database.load_new(DEVICE, VERSION)
    return {row.probe.inputs[0].elements for row in rows}


def test_only_what_is_new_is_read_again(path):
    mine, other = CostDatabase(path), CostDatabase(path)
    assert new_sizes(mine) == set()
    keep(other, 1, 2, 3)
    assert new_sizes(mine) == {1, 2, 3}
    assert new_sizes(mine) == set()
    keep(other, 4)
    assert new_sizes(mine) == {4}
    assert sizes_in(mine) == {1, 2, 3, 4}


def test_a_figure_that_took_the_place_of_another_is_new(path):
    mine, other = CostDatabase(path), CostDatabase(path)
    keep(other, 1, 2)
    assert new_sizes(mine) == {1, 2}
    for elements in (2, 1):
        surer = measured(elements, sample(2e-3, count=1000))
        other.keep(rows_of(surer))
        assert set(mine.load_new(DEVICE, VERSION)) == {surer}


def test_a_file_that_was_cleared_or_replaced_is_read_from_its_beginning(path):
    mine, other = CostDatabase(path), CostDatabase(path)
    keep(other, 1, 2, 3)
    assert new_sizes(mine) == {1, 2, 3}
    other.clear()
    keep(other, 4, 5, 6, 7)
    assert new_sizes(mine) == {4, 5, 6, 7}
    path.rename(path.with_suffix(".aside"))
    keep(other, 8)
    assert new_sizes(mine) == {8}
    keep(other, 9)
    assert new_sizes(mine) == {9}


def test_figures_of_another_run_are_corrected(path):
    database = CostDatabase(path)
    database.keep(rows_of(measured(1, sample(1e-3, count=1000))))
    poorer = sample(2e-3, count=1)
    database.correct(rows_of(measured(1, poorer)))
    assert figure(database, 1) == poorer


def test_what_a_graph_has_taken_only_grows(path):
    database = CostDatabase(path)
    for seconds, most in ((2.0, 2.0), (1.0, 2.0), (3.0, 3.0)):
        database.keep([Spending(DEVICE, VERSION, "it", seconds)])
        assert database.spent(DEVICE, VERSION, "it") == most
    assert database.spent(DEVICE, VERSION, "another") == 0.0
    assert database.rows() == []
