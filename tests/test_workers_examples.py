"""The examples of several processes run as they are, and learn in mixed precision."""

import pathlib
import re

import pytest

from grappler_pass.planning.plan import Plan
from tests.clusters import run_job
from tests.fresh_process import ROOT
from tests.test_examples import output_of
from tf_amp.config.amp_config import LOG, OPT_LEVEL, STRICT, SWITCH

MIXED = {SWITCH: "1", OPT_LEVEL: "O2", STRICT: "1"}


def plans_by_process(folder: pathlib.Path) -> dict[str, list[Plan]]:
    """Return the plans with something in 16 bits, by number of the process."""
    found: dict[str, list[Plan]] = {}
    for path in sorted(folder.glob("*.plan.json")):
        plan = Plan.from_json(path.read_text())
        if any(row.is_low for row in plan.decisions):
            found.setdefault(path.name.partition("-")[0], []).append(plan)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rewriting"), [("two_workers", 2), ("parameter_server", 1)]
)
def test_an_example_trains_in_mixed_precision_in_its_processes(
    name: str, rewriting: int, tmp_path: pathlib.Path
) -> None:
    env = {**MIXED, LOG: str(tmp_path / "log")}
    if name == "two_workers":
        lines = output_of(name, {**env, "CUDA_VISIBLE_DEVICES": "-1"}, tmp_path)
    else:
        # As its tasks, each of which could be on a machine of its own.
        program = f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r})\n"
        program += (ROOT / "examples" / f"{name}.py").read_text()
        counts = {"ps": 1, "worker": 1, "chief": 1}
        lines = run_job(program, counts, env, serving=("ps", "worker"))["chief", 0]

    found = re.fullmatch(r"final accuracy ([\d.]+)", lines[-1])
    assert found, lines
    assert float(found[1]) > 0.93
    assert sum(line.startswith("epoch ") for line in lines) == 10
    steps = {
        process: [plan for plan in plans if "step" in plan.graph]
        for process, plans in plans_by_process(tmp_path / "log").items()
    }
    assert len([plans for plans in steps.values() if plans]) == rewriting
    shapes = {
        tuple((str(row.slot), row.dtype) for row in plans[0].decisions)
        for plans in steps.values()
        if plans
    }
    assert len(shapes) == 1


def test_an_example_knows_nothing_of_the_package() -> None:
    for name in ("two_workers", "parameter_server", "local_job"):
        assert "tf_amp" not in (ROOT / "examples" / f"{name}.py").read_text()
