"""Plans of small programs for every shipped profile are as they were reviewed.

A share of them is made anew here, `make test-long` makes them all. After a change that
is meant: `python -m tests.golden_plans`, and the commit says which plans and why.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

import pytest

from grappler_pass.costs import DeviceProfile
from tests import golden_lines, golden_plans
from tests.golden_lines import REWRITING_LEVELS, Key, own_key, profile_named
from tests.golden_plans import CALLS, COUNTS, PLANS, main
from tests.golden_programs.arriving import why_not_here
from tests.golden_programs.catalog import BY_NAME, PROGRAMS
from tf_amp.config.amp_config import LOW_DTYPES

SMALL = "session"


def made_here(keys: Iterable[Key]) -> list[Any]:
    """Return parameters, which are skipped where other plans of them are made."""
    return [
        pytest.param(key, id=str(key), marks=pytest.mark.skipif(bool(why), reason=why))
        for key in keys
        for why in [why_not_here(key.program, profile_named(key.profile).kind)]
    ]


def share() -> list[Key]:
    """Return one plan of each program; for CPUs where that takes no tracing."""
    keys = list(PLANS.keys())
    cpus = {n for n in DeviceProfile.names() if profile_named(n).kind == "cpu"}
    chosen = []
    for number, program in enumerate(PROGRAMS):
        own = [key for key in keys if key.program == program.name]
        if program.stored:
            own = [key for key in own if key.profile in cpus]
        chosen.append(own[7 * number % len(own)])
    return chosen


def counted_share() -> list[Key]:
    """Return some of what is counted, of graphs that are planned anyway."""
    planned = [own_key(key.program, key.profile) for key in share()]
    return [key for key in COUNTS.keys() if key in planned][::3]


@pytest.mark.parametrize("key", made_here(share()))
def test_a_plan_is_as_reviewed(key: Key) -> None:
    assert not list(PLANS.changes([key]))


def test_each_program_profile_type_and_level_is_among_them() -> None:
    programs, profiles, dtypes, levels = map(set, zip(*share(), strict=True))
    assert programs == {*BY_NAME} and profiles == {*DeviceProfile.names()}
    assert dtypes == {*LOW_DTYPES} and levels == {*REWRITING_LEVELS}


@pytest.mark.parametrize("key", made_here(counted_share()))
def test_a_step_starts_and_casts_as_much_as_was_reviewed(key: Key) -> None:
    assert not list(COUNTS.changes([key]))


@pytest.mark.parametrize("key", made_here(CALLS.keys()))
def test_the_pass_takes_as_many_calls_as_was_reviewed(key: Key) -> None:
    assert not list(CALLS.changes([key]))


def test_a_tenth_more_calls_are_as_many_and_more_are_not() -> None:
    assert golden_lines.calls_agree("100 calls", "110 calls")
    assert not golden_lines.calls_agree("100 calls", "111 calls")


small = pytest.mark.parametrize("key", made_here([own_key(SMALL, "cpu-amx-bf16")]))


def low_at_o1(profile: str, dtype: str) -> int:
    """Return of how many programs something is in 16 bits by the reviewed plans."""
    lines = PLANS.lines()
    keys = (Key(program, profile, dtype, "O1") for program in BY_NAME)
    return sum(not lines[str(key)].startswith("0 low") for key in keys)


@pytest.mark.parametrize("profile", ["cpu-generic", "cpu-intel-avx512-bf16"])
def test_nothing_is_in_bfloat16_where_products_do_not_gain(profile: str) -> None:
    assert low_at_o1(profile, "bfloat16") == 0


# An H100 takes nearly as long for elementwise ops in bfloat16 as in float32, and its
# products in float32 are rounded to TensorFloat-32.
@pytest.mark.parametrize(
    ("profile", "share"),
    [("v100", 1 / 3), ("t4", 1 / 3), ("a100", 1 / 3), ("h100", 0.1), ("h200", 0.1)],
)
def test_programs_gain_where_tensor_cores_are(profile: str, share: float) -> None:
    dtype = own_key(SMALL, profile).dtype
    assert low_at_o1(profile, dtype) >= share * len(BY_NAME)


@small
def test_what_has_changed_is_shown_with_what_was(
    key: Key, tmp_path: pathlib.Path
) -> None:
    other = own_key(SMALL, "h100")
    lines = PLANS.lines()
    kept = PLANS._replace(path=tmp_path / "plans.txt")
    kept.write({str(key): "1 low"})
    assert list(kept.changes([key, other])) == [
        f"- {key}: 1 low",
        f"+ {key}: {lines[str(key)]}",
        f"+ {other}: {lines[str(other)]}",
    ]


@small
def test_a_plan_is_shown_in_full(key: Key, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--show", SMALL, key.profile, "--level", "O2"]) == 0
    summary, header, *rows = capsys.readouterr().out.splitlines()
    assert f"is in {key.dtype}. " in summary and f" on {key.profile} " in summary
    assert header.startswith("type attribute") and len(rows) > 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check", "nothing"], "PROGRAM: received 'nothing'; allowed are wide_mlp, "),
        (["--show", SMALL, "p100"], "PROFILE: received 'p100'; allowed are a100, "),
        (["--show", SMALL, "h100", "--type", "fp8"], "'fp8'"),
    ],
)
def test_what_there_is_not_is_refused_by_name(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_lines_are_sorted_and_none_is_about_nothing() -> None:
    for kept in golden_plans.FILES:
        lines = kept.path.read_text().splitlines()
        assert lines == sorted(lines)
        assert kept.lines().keys() == {str(key) for key in kept.keys()}
