"""The examples of several processes run as they are, and learn in mixed precision."""

import pathlib
import re

import pytest

from grappler_pass.planning.plan import Plan
from tests.clusters import run_job
from tests.forking import run_forked
from tests.fresh_process import run_interpreter
from tests.test_examples import EXAMPLES
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


@pytest.mark.parametrize(
    ("name", "counts", "serving", "rewriting"),
    [
        ("two_workers", {"worker": 2}, (), 2),
        ("parameter_server", {"chief": 1, "ps": 1, "worker": 1}, ("ps", "worker"), 1),
    ],
)
def test_an_example_trains_in_mixed_precision_in_its_processes(
    name: str,
    counts: dict[str, int],
    serving: tuple[str, ...],
    rewriting: int,
    tmp_path: pathlib.Path,
) -> None:
    # As its tasks, each of which could be on a machine of its own.
    program = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
    text = (EXAMPLES / f"{name}.py").read_text()
    assert text.count("EPOCHS = 10\n") == 1
    # With fewer epochs, so that nothing but the time differs.
    program += text.replace("EPOCHS = 10\n", "EPOCHS = 4\n")
    env = {**MIXED, LOG: str(tmp_path / "log")}
    lines = run_job(program, counts, env, serving)[next(iter(counts)), 0]

    found = re.fullmatch(r"final accuracy ([\d.]+)", lines[-1])
    assert found, lines
    assert float(found[1]) > 0.93
    assert sum(line.startswith("epoch ") for line in lines) == 4
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


@pytest.mark.parametrize("name", ["two_workers", "parameter_server"])
def test_an_example_that_is_no_task_starts_its_tasks(
    name: str, tmp_path: pathlib.Path
) -> None:
    code = f"""
    import runpy, sys
    sys.path.insert(0, {str(EXAMPLES)!r})
    import local_job
    local_job.run = lambda counts, serving=(): print(counts, serving)
    runpy.run_path({str(EXAMPLES / name)!r} + ".py", run_name="__main__")
    """
    assert run_forked(code, cwd=tmp_path).lines() == [
        "{'worker': 2} ()"
        if name == "two_workers"
        else "{'ps': 1, 'worker': 1, 'chief': 1} ('ps', 'worker')"
    ]


# Who serves would do so for ever.
TASK = """
import json, os, sys, time
import local_job

if not local_job.is_task():
    local_job.run({"ps": 1, "worker": 2}, serving=("ps",))
place = json.loads(os.environ["TF_CONFIG"])
task = place["task"]
ports = {address for job in place["cluster"].values() for address in job}
print(task["type"], task["index"], len(ports), sys.argv[1:], flush=True)
if task["type"] == "ps":
    time.sleep(300)
sys.exit(3 if task["index"] else 0)
"""


def test_tasks_are_this_script_and_it_ends_as_they_do(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "task.py"
    script.write_text(TASK)
    env = {"PYTHONPATH": str(EXAMPLES)}
    done = run_interpreter([str(script), "given"], env=env, cwd=tmp_path)
    assert done.code == 3, done.err
    told = [f"{task} 3 ['given']" for task in ("ps 0", "worker 0", "worker 1")]
    # The one that serves may be ended before it says anything.
    assert set(told[1:]) <= set(done.out.splitlines()) <= set(told)


def test_an_example_knows_nothing_of_the_package() -> None:
    for name in ("two_workers", "parameter_server", "local_job"):
        assert "tf_amp" not in (EXAMPLES / f"{name}.py").read_text()
