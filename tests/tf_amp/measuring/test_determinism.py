"""Under enable_op_determinism two processes make the same plan, byte for byte."""

from __future__ import annotations

import pathlib

import pytest

from grappler_pass.costs.database.price_database import CostDatabase, costs_path
from tests.forking import run_forked
from tests.gelu_program import gelu_program
from tests.onednn import needs_gains

pytestmark = needs_gains

# All that the plan hangs on can be measured within the time, which is not used up.
BEFORE = """
from grappler_pass.planning.draft import Outcome
from tf_amp.measuring import tuner
# Comparisons have tests of their own.
tuner.OnlineTuner.outcome = lambda self, trial, decided: Outcome.UNKNOWN
if {determined}:
    tf.keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
tf_amp.enable(tune="budget:10")
"""
AFTER = """
print(tf_amp.explain(step, x).to_json())
for plan in tf_amp.plans():
    print(plan.to_json())
"""


def plans_of(cache: pathlib.Path, *, determined: bool) -> str:
    program = gelu_program(BEFORE.format(determined=determined), AFTER, edge=512)
    done = run_forked(program, env={"TF_AMP_CACHE": str(cache)})
    assert done.code == 0, done.err
    assert '"bfloat16"' in done.out
    return done.out


def rows_in(cache: pathlib.Path) -> list[object]:
    return CostDatabase(costs_path(cache)).rows()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A cache in which a tuned run has left prices."""
    folder = tmp_path_factory.mktemp("determinism") / "cache"
    plans_of(folder, determined=False)
    assert rows_in(folder)
    return folder


def test_with_an_empty_database_it_stays_empty_and_plans_are_equal(tmp_path):
    first = plans_of(tmp_path, determined=True)
    assert first == plans_of(tmp_path, determined=True)
    assert rows_in(tmp_path) == [] and '"measured"' not in first


def test_with_a_database_plans_are_equal_and_it_stays_as_it_is(cache):
    before = rows_in(cache)
    first = plans_of(cache, determined=True)
    assert first == plans_of(cache, determined=True)
    # The prices are an input of the plan, and nothing is added to them.
    assert '"measured"' in first
    assert rows_in(cache) == before


def test_the_same_database_would_otherwise_grow_and_change_the_plan(cache, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    costs_path(folder).write_bytes(costs_path(cache).read_bytes())
    database = CostDatabase(costs_path(folder))
    kept = rows_in(folder)
    database.clear()
    database.put(kept[::3])
    determined = plans_of(folder, determined=True)
    assert rows_in(folder) == sorted_like(kept[::3], kept)
    assert plans_of(folder, determined=False) != determined
    assert len(rows_in(folder)) > len(kept[::3])


def sorted_like(rows, order):
    return [row for row in order if row in rows]
