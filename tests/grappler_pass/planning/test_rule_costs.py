"""Plans of the models of two revisions, side by side."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.rule_costs import Figures, comparison, load, main, table

BEFORE = Figures("v100", "mlp", "train", (0.010, 0.004), 9, 5)
AFTER = dataclasses.replace(BEFORE, seconds=(0.010, 0.005), low_slots=3)
OTHER = dataclasses.replace(BEFORE, model="bert")


def test_the_table_tells_times_and_their_ratio() -> None:
    row = "| v100 | MLP | train | 10 | 4 | 2.500 | 5 of 9 |"
    assert row in table([BEFORE])


def test_a_graph_without_prices_has_the_ratio_of_one() -> None:
    free = dataclasses.replace(BEFORE, seconds=(0.0, 0.0), low_slots=0)
    assert "| 0 | 0 | 1.000 | 0 of 9 |" in table([free])


def test_what_became_slower_has_a_ratio_under_one() -> None:
    text = comparison([OTHER, BEFORE], [AFTER, OTHER])
    assert "| v100 | MLP | train | 4 | 5 | 0.800 | 5 -> 3 |" in text
    assert "- v100: 0.8944" in text
    assert "- all: 0.8944" in text


def test_one_file_alone_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--before", "figures.json"])
    assert "given together" in capsys.readouterr().err


def test_two_runs_plan_the_same_graphs_alike(tmp_path: Path) -> None:
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    graphs = tmp_path / "graphs"
    fixed = ["--models", "tiny_mlp", "--profiles", "v100", "--graphs", str(graphs)]
    main([*fixed, "--json", str(files[0])])
    traced = {each: each.stat().st_mtime_ns for each in graphs.iterdir()}
    main([*fixed, "--json", str(files[1])])
    assert {each: each.stat().st_mtime_ns for each in graphs.iterdir()} == traced
    first, second = map(load, files)
    assert first == second
    assert [each.mode for each in first] == ["train", "infer"]
    assert all(each.seconds[0] > 0.0 and each.slots > 0 for each in first)
