"""Every example runs as it is, and learns as well in mixed precision as without."""

from __future__ import annotations

import json
import pathlib
import re
import tempfile
from collections.abc import Mapping

import pytest

from grappler_pass.planning.plan import Plan
from tests.clusters import run_job
from tests.forking import run_forked, run_forked_command
from tests.fresh_process import run_interpreter
from tests.long import parameters
from tests.processes import ROOT
from tf_amp.config.amp_config import LOG, OPT_LEVEL, STRICT, SWITCH
from tf_amp.runtime import autostart

EXAMPLES = ROOT / "examples"
# The accuracy of each while nothing is rewritten.
FLOAT32 = {
    "custom_loop": 0.964,
    "keras_fit": 0.960,
    "legacy_keras": 0.980,
    "serve_saved_model": 0.944,
    "session_v1": 0.980,
    "set_in_script": 0.967,
}
# A tutorial does the same, or other tests of small models do.
ALIKE = ("accumulation", "custom_loop", "fine_tuning", "legacy_keras", "tf_data_images")
# Three standard deviations between two accuracies of 0.97 on 450 images.
TOLERANCE = 3 * (2 * 0.97 * 0.03 / 450) ** 0.5

# The scripts are so small that O1 rightly finds nothing to gain in most of them.
MIXED = {SWITCH: "1", OPT_LEVEL: "O2", STRICT: "1"}

# Of what takes long: less, so that nothing but the time differs.
BRIEFLY = {
    "block_sparse": {"UNITS = 512": "UNITS = 256", "epochs=12": "epochs=8"},
    "mirrored_fit": {"epochs=5": "epochs=3"},
    "own_train_step": {"epochs=4": "epochs=2"},
    "parameter_server": {"EPOCHS = 10\n": "EPOCHS = 4\n"},
    "quickstart": {"Dense(2048": "Dense(256"},
    "tf_data_images": {
        "= 48, 16": "= 48, 8",
        "steps_per_epoch=60": "steps_per_epoch=40",
    },
    "two_workers": {"EPOCHS = 10\n": "EPOCHS = 4\n"},
}

# It chooses its Keras before it imports TensorFlow, and has its data of scikit-learn.
FRESH = ("legacy_keras",)


def text_of(name: str) -> str:
    """Return the text of an example, with less of what takes long."""
    text = (EXAMPLES / f"{name}.py").read_text()
    for long, brief in BRIEFLY.get(name, {}).items():
        assert long in text, long
        text = text.replace(long, brief)
    return text


def output_of(
    name: str, env: Mapping[str, str], folder: pathlib.Path, *arguments: str
) -> list[str]:
    """Run an example in another folder and return the lines it prints."""
    # In a source folder that is not installed, the command line stands in for the
    # autostart file.
    bare = env.get(SWITCH) == "1" and not autostart.is_installed()
    starter = ("-m", "tf_amp", "run") if bare else ()
    with tempfile.TemporaryDirectory() as written:
        script = pathlib.Path(written, f"{name}.py")
        script.write_text(text_of(name))
        command = (*starter, str(script), *arguments)
        if name in FRESH:
            env = {**env, "PYTHONPATH": str(ROOT)}
            return run_interpreter(command, env=env, cwd=folder).lines()
        return run_forked_command(command, env=env, cwd=folder).lines()


def accuracy(lines: list[str]) -> float:
    """Return the accuracy that an example prints last."""
    found = re.fullmatch(r"final accuracy ([\d.]+)", lines[-1])
    assert found, lines
    return float(found[1])


@pytest.mark.parametrize("name", parameters(FLOAT32, ALIKE))
def test_an_example_learns_as_well_in_mixed_precision(
    name: str, tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "log"
    mixed = accuracy(output_of(name, {**MIXED, LOG: str(log)}, tmp_path))

    assert mixed > 0.93
    assert abs(mixed - FLOAT32[name]) < TOLERANCE
    plans = plans_in(log)
    assert any(row.is_low for plan in plans for row in plan.decisions)
    assert all(plan.low_dtype == "bfloat16" for plan in plans)


@pytest.mark.parametrize(
    "name", [*FLOAT32, "two_workers", "parameter_server", "local_job"]
)
def test_an_example_knows_nothing_of_the_package(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert "tf_amp" not in text


# The least accuracy of those that time their steps.
TIMED = {"fine_tuning": 0.85, "accumulation": 0.93, "tf_data_images": 0.9}
SPEED = re.compile(
    r"float32 -> tf-amp: \S+ -> \S+ ms per step "
    r"\(\d+\.\d\dx in the median of 1[05] pairs of steps, half of them \S+x to \S+x\)"
)


def plans_in(folder: pathlib.Path) -> list[Plan]:
    """Return the plans that a program has written down."""
    return [Plan.from_json(path.read_text()) for path in folder.glob("*.plan.json")]


def timed(name: str, folder: pathlib.Path, level: str = "O2") -> list[str]:
    """Run an example and return what it prints before its last line, the speed-up."""
    folder.mkdir(exist_ok=True)
    env = {OPT_LEVEL: level, STRICT: "1", LOG: str(folder / "log")}
    *lines, speed = output_of(name, env, folder)
    assert SPEED.fullmatch(speed), speed
    if level == "O2":
        plans = plans_in(folder / "log")
        assert any(row.is_low for plan in plans for row in plan.decisions)
    return lines


@pytest.mark.parametrize("name", parameters(TIMED, ALIKE))
def test_an_example_trains_and_prints_its_speed_up(
    name: str, tmp_path: pathlib.Path
) -> None:
    assert accuracy(timed(name, tmp_path)) > TIMED[name]


def test_the_quickstart_prints_its_speed_up_or_that_nothing_is_in_16_bits(
    tmp_path: pathlib.Path,
) -> None:
    assert timed("quickstart", tmp_path) == []
    (said,) = timed("quickstart", tmp_path / "O0", "O0")
    assert said.startswith("No operation is in 16 bits here.")


def test_a_model_with_a_step_of_its_own_learns_to_denoise(
    tmp_path: pathlib.Path,
) -> None:
    (said,) = timed("own_train_step", tmp_path)
    found = re.fullmatch(r"mean squared error (\S+), denoised (\S+)", said)
    assert found and float(found[2]) < 0.4 * float(found[1])


def test_without_a_gpu_float16_says_so_and_trains(tmp_path: pathlib.Path) -> None:
    # At O2 kernels of a CPU would take minutes.
    said, scale, *rest = timed("float16_gpu", tmp_path, "O1")
    assert said.startswith("There is no GPU here")
    assert re.fullmatch(r"loss scale \d+, \d+ steps skipped", scale)
    assert accuracy(rest) > 0.9


@pytest.mark.parametrize(
    ("name", "package"),
    [("hugging_face", "transformers"), ("keras_hub_text", "keras_hub")],
)
def test_a_model_of_other_packages_learns(
    name: str, package: str, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip(package, reason="`make test-long` has an environment with it")
    # It chooses its Keras before it imports TensorFlow.
    env = {"PYTHONPATH": str(ROOT), STRICT: "1"}
    command = [str(EXAMPLES / f"{name}.py")]
    *_, said, speed = run_interpreter(command, env=env, cwd=tmp_path).lines()
    assert SPEED.fullmatch(speed), speed
    kind, _, figure = said.rpartition(" ")
    # By chance there are a half, and log(128), which is 4.9.
    expected = {"final accuracy": (0.7, 1.0), "final loss": (0.0, 3.5)}[kind]
    assert expected[0] < float(figure) <= expected[1]


def test_the_page_of_examples_names_all_of_them() -> None:
    named = {
        *re.findall(r"`(\w+\.(?:py|ipynb))`", (ROOT / "docs/examples.md").read_text())
    }
    modules_of_others = {"demo_tasks.py", "local_job.py"}
    there = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert named == there - modules_of_others


# Those that import more than the package itself demands.
PACKAGES = ("keras_hub", "sklearn", "transformers")
DEMANDING = [
    path.stem
    for path in sorted(EXAMPLES.glob("*.py"))
    if re.search(rf"(import|from|files\(.) ?({'|'.join(PACKAGES)})", path.read_text())
]


@pytest.mark.parametrize("name", DEMANDING)
def test_an_example_whose_package_is_missing_ends_with_one_sentence(name: str) -> None:
    code = f"""
    import runpy, sys
    missing = {PACKAGES!r}
    for name in [each for each in sys.modules if each.partition(".")[0] in missing]:
        del sys.modules[name]
    sys.modules |= dict.fromkeys(missing)
    sys.path.insert(0, {str(EXAMPLES)!r})
    runpy.run_path({str(EXAMPLES / name)!r} + ".py", run_name="__main__")
    """
    done = run_forked(code)
    assert done.code == 1
    assert re.search(
        r"^This example needs .*: pip install '\.\[\w+\]'\n\Z", done.err, re.M
    )


def test_the_demo_prints_plans_times_and_accuracies(tmp_path: pathlib.Path) -> None:
    # Smaller batches of smaller images, so that nothing but the size differs.
    code = f"""
    import runpy, sys
    sys.path.insert(0, {str(EXAMPLES)!r})
    import demo_tasks
    demo_tasks.DIGITS_SIZE = demo_tasks.DIGITS_BATCH = 16
    sys.argv = ["demo.py", "--tasks", "digits", "--digits-steps", "6"]
    runpy.run_path({str(EXAMPLES / "demo.py")!r}, run_name="__main__")
    """
    env = {OPT_LEVEL: "O2", STRICT: "1"}
    lines = run_forked(code, env=env, cwd=tmp_path).lines()

    output = "\n".join(lines)
    assert "What tf-amp did to 2 graphs" in output
    assert "The 8 layers of train_step that take longest" in output
    # What it ends with is the result; no line of it is folded on 80 columns.
    assert max(map(len, lines)) <= 80
    end = output.rpartition("Everything took ")[2]
    assert "accuracy on data held back" in end and "digits, ResNet" in end
    rows = [line.split() for line in lines if line.strip().endswith("%")]
    cells = [cell for row in rows for cell in row]
    assert (cells.count("float32"), cells.count("mixed")) == (1, 1)


def test_the_text_of_the_demo_is_cut_into_batches(tmp_path: pathlib.Path) -> None:
    code = f"""
    import sys
    sys.path.insert(0, {str(EXAMPLES)!r})
    import demo_tasks
    task = demo_tasks.text_task(2)
    first, labels = next(task.batches())
    print(first.shape == labels.shape == (task.batch_size, first.shape[1]))
    print(bool((first[:, 1:] == labels[:, :-1]).numpy().all()))
    print(len(task.held_back[1]) % task.batch_size, task.build().count_params() > 0)
    """
    assert run_forked(code, cwd=tmp_path).lines() == ["True", "True", "0 True"]


def test_the_callbacks_example_trains_and_reports_beside_its_weights(
    tmp_path: pathlib.Path,
) -> None:
    lines = output_of("keras_callbacks_fit", {OPT_LEVEL: "O2", STRICT: "1"}, tmp_path)

    assert accuracy(lines) > 0.93
    told = next(line for line in lines if line.startswith("Mixed precision: "))
    assert "in bfloat16. A step is expected to take " in told
    assert "10 pairs of steps" in told
    run = tmp_path / "keras_callbacks_run"
    report = json.loads((run / "precision_report.json").read_text())
    assert report["outcome"] == "ended" and report["epochs"] == 8
    assert any(planned["is_applied"] for planned in report["plans"])
    assert (run / "best.weights.h5").exists()


def test_a_loss_scale_of_ones_own_trains_in_float16(tmp_path: pathlib.Path) -> None:
    lines = output_of("own_loss_scale", {STRICT: "1"}, tmp_path)

    found = re.fullmatch(r"scale (\d+), (\d+) steps skipped", lines[-2])
    assert found, lines
    scale, skipped = map(int, found.groups())
    # It began at 2 ** 24, which is too much for float16.
    assert 1 < scale < 2**24 and skipped > 0
    assert accuracy(lines) > 0.93


def test_two_replicas_learn_in_mixed_precision(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "log"
    lines = output_of("mirrored_fit", {**MIXED, LOG: str(log)}, tmp_path)

    assert accuracy(lines) > 0.93
    assert "8 gradients on 2 replicas, per step" in lines
    assert "  after   fused bfloat16: 1 collectives, " in "\n".join(lines)
    plans = plans_in(log)
    assert any(row.is_low for plan in plans for row in plan.decisions)
    assert list(tmp_path.iterdir()) == [log]


@pytest.mark.long
def test_a_block_sparse_network_learns_as_well_as_a_dense_one(
    tmp_path: pathlib.Path,
) -> None:
    lines = output_of("block_sparse", {**MIXED}, tmp_path)

    assert [line.split(":")[0] for line in lines[-4::2]] == ["dense", "block-sparse"]
    dense, sparse = accuracy(lines[:-2]), accuracy(lines)
    assert sparse > 0.93 and sparse > dense - TOLERANCE


def test_what_is_benched_runs(tmp_path: pathlib.Path) -> None:
    code = f"""
    import sys
    sys.path.insert(0, {str(ROOT)!r})
    from examples import benched
    model, *batch = benched.unet(1)
    # To trace it takes longer than to take a step.
    model.run_eagerly = True
    print(model.train_on_batch(*batch) > 0.0)
    print(benched.mixer().output_shape)
    """
    assert run_forked(code, cwd=tmp_path).lines() == ["True", "(None, 10)"]


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
    program += text_of(name)
    env = {**MIXED, LOG: str(tmp_path / "log")}
    lines = run_job(program, counts, env, serving)[next(iter(counts)), 0]

    assert accuracy(lines) > 0.93
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
