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
from evidence.summary import rows_of, steps_of
from evidence.trial import Trial
from tests.forking import run_forked
from tests.processes import folder_that_hides

# Fewer examples and layers, so that nothing but the time differs.
TRIAL = """
import dataclasses, json
from evidence import data, trial
from evidence.families import translation

translation._LAYERS = 1
digits = data.digits
data.digits = lambda: tuple(array[:500] for array in digits())
split = data.split
def split_off_few(*arrays):
    learned, held_out = split(*arrays)
    return learned, tuple(array[:32] for array in held_out)
data.split = split_off_few
print(json.dumps(dataclasses.asdict(trial.run(NAME, "bfloat16", seed=1, steps=3))))
"""


@pytest.mark.parametrize("name", NAMES)
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
    assert "CNN classification | tf-amp, float16 at O2 | 2 | 1 |" in printed
    wanted = Wanted(family, method_of("float16"), seed=0, steps=2)
    trial = trial_of(wanted, tmp_path)
    assert trial is not None
    assert trial.steps == len(trial.losses) == 2 and trial.low_ops > 0
    assert trial_of(dataclasses.replace(wanted, steps=3), tmp_path) is None
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert len(files) == 2
    assert json.loads(earlier.read_text()) == {"trial": json.loads(json.dumps(kept))}
    main(words)
    assert capsys.readouterr().out == printed
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}


def test_float16_trains_half_and_is_held_against_float32_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = family_of("language")
    kept = {
        ("float32", seed): _trial(100, {25: 9.0, 50: 4.0 + seed, 100: 2.0 + seed})
        for seed in range(3)
    }
    for seed, more in enumerate((0.5, 0.6, 0.4)):
        kept["float16", seed] = _trial(50, {50: 4.0 + seed + more})
        kept["bfloat16", seed] = _trial(100, {100: 2.0 + seed + (-1) ** seed * 0.01})

    def known(wanted: Wanted, folder: pathlib.Path) -> Trial | None:
        trial = kept.get((wanted.method.name, wanted.seed))
        assert trial is None or trial.steps == wanted.steps
        return trial

    monkeypatch.setattr("evidence.summary.trial_of", known)
    assert steps_of(family, method_of("float16"), 100) == 50
    rows = {row.method.name: row for row in rows_of(family, range(4), steps=100)}
    assert [*rows] == ["float32", "bfloat16", "float16"]
    float16 = rows["float16"]
    assert (float16.seeds, float16.steps) == (3, 50)
    assert float16.difference == pytest.approx(0.5)
    # Fewer bits per letter are better, and so more of them worse.
    assert float16.is_worse and not rows["bfloat16"].is_worse
    assert rows["float32"].p_value is None
    told = page.conclusion([*rows.values()])
    assert "float16 at O2: worse than float32 at p < 0.05 in language model" in told
    assert "tf-amp, bfloat16 at O2: worse than float32 at p < 0.05 in none" in told
    assert page.cells(float16)[4:7] == ("5.5 ± 0.95", "+0.5", "0.01")


def test_a_method_gets_its_own_switches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_AMP_OPT_LEVEL", "O3")
    for method in METHODS:
        found = environment_of(method)
        own = {name for name in found if name.startswith(("TF_AMP", "TF_ENABLE_AUTO"))}
        assert own == method.environment.keys()


def _trial(steps: int, metrics: dict[int, float]) -> Trial:
    ends = tuple((step, 0.1 * step, value) for step, value in metrics.items())
    return Trial(steps=steps, losses=(1.0,), metrics=ends, skipped=0, low_ops=7)
