"""What is called a few times and dropped leaves nothing of its comparison."""

from __future__ import annotations

import pathlib

import pytest

from tests.tf_amp.compare.test_step_comparison import run

# Functions of one line each, called so often, and what is alive of their comparisons.
FUNCTIONS = """
import gc
HELD = ("StepComparison", "Draft", "Trial")

def called(times):
    @tf.function
    def few(x):
        return (((x @ A) @ A) @ A) @ A

    for _ in range(times):
        few(tf.constant(A))
    return few

def alive():
    for _ in range(2):
        gc.collect()
    names = [type(each).__name__ for each in gc.get_objects()]
    return [names.count(name) for name in HELD]

def undecided():
    compared = [site.comparison for site in call_sites.all_sites()]
    return sum(each is not None for each in compared)

tf_amp.enable(dtype="bfloat16")
"""


def test_functions_called_a_few_times_leave_nothing(tmp_path: pathlib.Path) -> None:
    lines = run(
        f"""
{FUNCTIONS}
kept = called(5)
print(alive())
sites = len([*call_sites.all_sites()])
for _ in range(4):
    called(5)
print(alive(), len([*call_sites.all_sites()]) - sites)
""",
        tmp_path,
    )
    assert lines[-2:] == ["[1, 1, 0]", "[1, 1, 0] 0"]


@pytest.mark.parametrize("limit", ["MOST_IDLE_SECONDS = 0.0", "MOST_UNDECIDED = 1"])
def test_what_is_not_called_any_more_is_not_compared_any_more(
    limit: str, tmp_path: pathlib.Path
) -> None:
    lines = run(
        f"""
{FUNCTIONS}
call_sites.{limit}
kept = [called(5) for _ in range(3)]
print(undecided(), alive())
# The first goes on as prices have decided.
print(set(labels_of(40, kept[0])))
""",
        tmp_path,
    )
    assert lines[-2:] == ["1 [1, 1, 0]", "{''}"]


def test_a_verdict_needs_no_graphs(tmp_path: pathlib.Path) -> None:
    lines = run(
        f"""
{FUNCTIONS}
kept = called(60)
print(alive()[1:])
""",
        tmp_path,
    )
    assert lines[-1] == "[0, 0]"
