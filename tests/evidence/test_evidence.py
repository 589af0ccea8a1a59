"""Each family trains for a few steps; rows and the page say what runs came to."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib

import pytest

from evidence import page
from evidence.__main__ import main
from evidence.families import NAMES, family_of
from evidence.methods import METHODS, environment_of, method_of
from evidence.records import Wanted, trial_of
from evidence.summary import (
    COMPARISONS,
    SEEDS,
    Difference,
    Row,
    corrected,
    is_complete,
    rows_of,
)
from evidence.trial import Trial
from tests.forking import run_forked
from tests.long import parameters
from tests.processes import folder_that_hides

# Fewer examples, so that nothing but the time differs.
TRIAL = """
import dataclasses, json
from evidence import data, trial
digits = data.digits
data.digits = lambda: tuple(array[:500] for array in digits())
split = data.split
def split_off_few(*arrays):
    learned, held_out = split(*arrays)
    return learned, tuple(array[:32] for array in held_out)
data.split = split_off_few
print(json.dumps(dataclasses.asdict(trial.run(NAME, "bfloat16", seed=1, steps=3))))
"""


# The others are a network of each kind.
@pytest.mark.parametrize("name", parameters(NAMES, ("generation", "translation")))
def test_a_family_trains_in_16_bits(name: str) -> None:
    env = method_of("bfloat16").environment
    lines = run_forked(f"NAME = {name!r}\n{TRIAL}", env=env).lines()
    trial = Trial(**json.loads(lines[-1]))
    assert trial.steps == len(trial.losses) == 3
    assert all(map(math.isfinite, trial.losses)) and trial.low_ops > 0
    assert math.isfinite(trial.metrics[-1][-1])


def test_what_has_run_is_kept_and_not_run_again(
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(folder_that_hides()))
    words = ["classification", "--methods", "float32", "float16", "--seeds", "1"]
    words += ["--steps", "4", "--output", str(tmp_path)]
    family = family_of("classification")
    earlier = Wanted(family, method_of("float32"), seed=0, steps=4).path(tmp_path)
    earlier.parent.mkdir()
    kept = dataclasses.asdict(_trial(4, {2: 0.5, 4: 0.6}))
    earlier.write_text(json.dumps({"trial": kept}))
    main(words)
    printed = capsys.readouterr().out
    assert "CNN classification | tf-amp, float16 at O2 | 4 | " in printed
    wanted = Wanted(family, method_of("float16"), seed=0, steps=4)
    trial = trial_of(wanted, tmp_path)
    assert trial is not None
    assert trial.steps == len(trial.losses) == 4 and trial.low_ops > 0
    assert trial_of(dataclasses.replace(wanted, steps=3), tmp_path) is None
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(files) == 2
    assert json.loads(earlier.read_text()) == {"trial": json.loads(json.dumps(kept))}
    main(words)
    assert capsys.readouterr().out == printed
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}


def test_each_method_is_held_against_float32_seed_by_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = family_of("language")
    kept = {("float32", seed): _trial(100, {100: 2.0 + seed}) for seed in range(3)}
    for seed, more in enumerate((0.5, 0.51, 0.49)):
        kept["float16", seed] = _trial(100, {50: 9.0, 100: 2.0 + seed + more})
        kept["bfloat16", seed] = _trial(100, {100: 2.0 + seed + (-1) ** seed * 0.01})
    _keep(monkeypatch, kept)
    found = rows_of(family, range(4), steps=100)
    rows = {row.method.name: row for row in found}
    assert [*rows] == ["float32", "bfloat16", "float16"]
    assert rows["float32"].difference is None
    float16 = rows["float16"]
    assert (float16.seeds, float16.steps, float16.untrained) == (3, 100, 7.0)
    assert float16.difference is not None
    assert float16.difference.mean == pytest.approx(0.5)
    # Of 0.5 ± 0.01 over three seeds: 4.303 standard errors to either side.
    error = 4.3027 * 0.01 / math.sqrt(3)
    assert float16.difference.lowest == pytest.approx(0.5 - error, abs=1e-5)
    assert float16.difference.highest == pytest.approx(0.5 + error, abs=1e-5)
    p_values = corrected(found)
    uncorrected = float16.difference.p_value
    assert p_values["language", "float16"] == pytest.approx(24 * uncorrected)
    told = page.conclusion(found)
    # Fewer bits per letter are better, and so more of them worse.
    assert "float16 at O2: worse than float32 in language model of 1 families" in told
    assert "tf-amp, bfloat16 at O2: worse than float32 in none of 1 families" in told
    assert page.cells(float16, p_values)[3:8] == (
        "7",
        "3.5 ± 1",
        "+0.5 (+0.48 to +0.52)",
        f"{uncorrected:.3f}",
        f"{24 * uncorrected:.2f}",
    )


def test_the_correction_is_for_every_comparison_that_was_fixed() -> None:
    assert (len(SEEDS), COMPARISONS) == (8, 24)
    names = [method.name for method in METHODS[1:]]
    p_values = dict(zip(names, (0.004, 0.001, 0.5, 0.002), strict=True))
    rows = [_row(name, p_value) for name, p_value in p_values.items()]
    # The smallest times all 24, the next one times 23, and never under those before.
    expected = {"tensorflow": 0.024, "float16": 0.046, "keras": 0.088, "bfloat16": 1.0}
    found = {name: value for (_, name), value in corrected(rows).items()}
    assert found == pytest.approx(expected)
    tied = corrected([_row("keras", 0.001), _row("tensorflow", 0.001)])
    assert set(tied.values()) == {0.024}


def test_no_family_is_shown_before_all_methods_have_all_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = {
        (method.name, seed): _trial(family_of("wide_deep").steps, {400: 0.1 * seed})
        for method in METHODS
        for seed in SEEDS
    }
    _keep(monkeypatch, kept)
    for seed in SEEDS:
        kept["keras", seed] = _trial(400, {400: 0.1 * seed + 0.02 + 1e-4 * seed})
    assert is_complete(family_of("wide_deep"))
    said = " ".join(page.caption().split())
    assert "of 1 kinds (6 are planned) with 8 seeds each" in said
    assert "comparisons): Keras' policy, bfloat16 (wide & deep)." in said
    del kept["float16", 7]
    assert not is_complete(family_of("wide_deep"))
    assert "no kind has all of its runs" in " ".join(page.caption().split())


def test_a_method_gets_its_own_switches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_AMP_OPT_LEVEL", "O3")
    for method in METHODS:
        found = environment_of(method)
        own = {name for name in found if name.startswith(("TF_AMP", "TF_ENABLE_AUTO"))}
        assert own == method.environment.keys()


def _keep(monkeypatch: pytest.MonkeyPatch, kept: dict[tuple[str, int], Trial]) -> None:
    """Have runs that took no time be the ones that are kept."""

    def known(wanted: Wanted, folder: pathlib.Path) -> Trial | None:
        trial = kept.get((wanted.method.name, wanted.seed))
        return trial if trial and trial.steps == wanted.steps else None

    monkeypatch.setattr("evidence.summary.trial_of", known)


def _row(name: str, p_value: float) -> Row:
    return Row(
        family=family_of("wide_deep"),
        method=method_of(name),
        steps=1,
        seeds=8,
        untrained=1.0,
        metric=0.1,
        spread=0.0,
        difference=Difference(0.1, 0.0, 0.2, p_value),
        skipped=0.0,
        low_ops=1,
    )


def _trial(steps: int, metrics: dict[int, float]) -> Trial:
    ends = ((0, 7.0), *metrics.items())
    return Trial(steps=steps, losses=(1.0,), metrics=ends, skipped=0, low_ops=7)
