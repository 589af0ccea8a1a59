"""`tf-amp bench`: what it refuses, what it keeps, and what it says of real programs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import sys
import time
from typing import Any

import pytest

from tests.processes import Outcome, run, run_python, sources, started
from tf_amp.commands import cli
from tf_amp.report import page

# Steps without TensorFlow, so that a process takes no time to speak of.
LIGHT = """
import os, sys, time
import numpy as np

def quick(batch):
    return lambda: (time.sleep(0.002), np.float32(batch))[1]

def hangs(batch):
    seconds = iter([0.01] * 10 + [1e6])
    return lambda: time.sleep(next(seconds))

def prints(batch):
    return lambda: print("x" * 100_000, file=print("y" * 100_000) or sys.stderr)

def forks(batch):
    if not os.fork():
        time.sleep(1e6)
    return lambda: time.sleep(0.01)

def started(batch):
    seen = os.path.join(os.environ["TF_AMP_CACHE"], "seen")
    os.makedirs(os.path.dirname(seen), exist_ok=True)
    with open(seen, "a+") as file:
        file.write("x")
    count = os.path.getsize(seen)
    return lambda: (time.sleep(0.002), np.float32(count))[1]

def fails(batch):
    raise ValueError("no such data")

def fails_when_large(batch):
    return quick(batch) if batch < 8 else os.abort()
"""
COMMAND = [sys.executable, "-m", "tf_amp", "bench"]
SHORT = ("--step-seconds", "0.1")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "light.py").write_text(LIGHT)
    return tmp_path


def bench(folder: pathlib.Path, *arguments: str) -> Outcome:
    # What Keras would import and no step needs takes as long as most of these.
    done = run([*COMMAND, *arguments], env=sources(), cwd=folder)
    # How many runs there are is said before all else, and how far it has come.
    err = re.sub(r"^tf-amp: .* (\.\.\.|change that\.)\n", "", done.err, flags=re.M)
    return dataclasses.replace(done, err=err)


def kept_in(path: pathlib.Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_job_goes_on_where_it_stopped(folder: pathlib.Path) -> None:
    command = ("light:quick", "--methods", "float32", "--batches", "4", *SHORT)
    first = bench(folder, *command, "--rounds", "1", "--json", "kept.json")
    assert first.code == 0, first.err
    before = kept_in(folder / "kept.json")["samples"]
    assert [each["method"] for each in before] == ["float32", "float32 again"]
    assert all(each["step_seconds"][0] > 0.002 for each in before)
    second = bench(folder, *command, "--rounds", "3", "--json", "kept.json")
    kept = kept_in(folder / "kept.json")
    assert kept["samples"][:2] == before and len(kept["samples"]) == 6
    assert "medians of 3 rounds" in second.out and "noise" in second.out
    assert {"Python", "tf-amp", "keras"} <= dict(kept["context"]["versions"]).keys()
    assert kept["context"]["processor"]
    other = bench(folder, *command, "--mode", "infer", "--json", "kept.json")
    assert other.code == 2
    assert 'holds another job: mode was "train", now "infer"' in other.err
    with (folder / "light.py").open("a") as file:
        file.write("# edited")
    edited = bench(folder, *command, "--json", "kept.json")
    assert edited.code == 2
    assert "holds another job: light:quick was edited since" in edited.err
    assert kept_in(folder / "kept.json") == kept


def test_what_is_measured_of_a_program_without_an_end_is_used(
    folder: pathlib.Path,
) -> None:
    command = ("light:hangs", "--methods", "float32", "--batches", "4", "--rounds", "1")
    done = bench(folder, *command, "--seconds", "5")
    assert done.code == 0, done.err
    assert "ended after 5 s, and measured up to there: float32" in done.out


@pytest.mark.parametrize("name", ["prints", "forks"])
def test_what_a_program_prints_or_leaves_behind_does_no_harm(
    folder: pathlib.Path, name: str
) -> None:
    command = (f"light:{name}", "--methods", "float32", "--batches", "4")
    done = bench(folder, *command, "--rounds", "1", *SHORT)
    assert done.code == 0, done.err
    assert done.err == "" and "xxx" not in done.out
    assert not processes_in(folder)


def processes_in(folder: pathlib.Path) -> list[str]:
    """Return the command lines of processes that are at home in a folder."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").resolve() == folder.resolve():
                found.append((process / "cmdline").read_text())
    return found


@pytest.mark.parametrize(
    ("learn", "expected"),
    [
        ((), {"float32": {1, 2}, "tf-amp:O2+TUNE=on": {1, 2}}),
        (("--learn",), {"float32": {1}, "tf-amp:O2+TUNE=on": {2}}),
    ],
)
def test_a_process_that_learns_is_not_counted(
    folder: pathlib.Path, learn: tuple[str, ...], expected: dict[str, set[int]]
) -> None:
    # Tests run without measuring.
    methods = ("--methods", "tf-amp:O2+TUNE=on")
    command = ("light:started", *methods, "--batches", "4", "--rounds", "2")
    command = (*command, "--step-seconds", "0.01")
    done = bench(folder, *command, *learn, "--json", "kept.json")
    assert done.code == 0, done.err
    samples = kept_in(folder / "kept.json")["samples"]
    assert len(samples) == 6
    # How many processes have used the folder of costs of the method, or of its round.
    found = {
        method: {each["values"][0] for each in samples if each["method"] == method}
        for method in expected
    }
    assert found == expected


def test_a_program_that_fails_is_reported_with_its_own_frames(
    folder: pathlib.Path,
) -> None:
    command = ("light:fails", "--methods", "float32", "--batches", "4", "--rounds", "3")
    done = bench(folder, *command, "--html", "page.html")
    assert done.code == 1 and done.out == ""
    assert done.err.endswith(
        "\nValueError: no such data\n"
        "tf-amp: nothing was measured: float32 at batch 4: exit status 1: "
        "ValueError: no such data.\n"
    )
    assert done.err.startswith("Traceback (most recent call last):\n")
    frames = re.findall(r'File "(.*)", line \d+, in (.*)', done.err)
    assert frames == [(str(folder / "light.py"), "fails")], done.err
    assert not (folder / "page.html").exists()


def test_what_was_measured_beside_a_failure_is_kept(folder: pathlib.Path) -> None:
    command = ("light:fails_when_large", "--methods", "float32", "--batches", "4,8")
    done = bench(folder, *command, "--rounds", "2", *SHORT, "--json", "kept.json")
    assert done.code == 1
    assert "float32, batch 8: failed, ended by SIGABRT" in done.out
    samples = kept_in(folder / "kept.json")["samples"]
    counts = [(each["batch"], bool(each["failure"])) for each in samples]
    assert counts == [(4, False), (4, False), (8, True), (4, False), (4, False)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_keeps_what_it_has_and_leaves_no_process(
    folder: pathlib.Path, number: signal.Signals
) -> None:
    command = [*COMMAND, "light:quick", "--methods", "float32", "--batches", "4"]
    command += [*SHORT, "--rounds", "500", "--json", "kept.json"]
    with started(command, cwd=folder, env=sources()) as process:
        wait_for(folder / "kept.json")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "float32" in out
    count = len(kept_in(folder / "kept.json")["samples"])
    kept = f"kept.json keeps {count} of 1000 runs, and the same command does the rest"
    assert err.endswith(f"tf-amp: interrupted; {kept}.\n")
    assert not processes_in(folder)
    assert {each.name for each in folder.iterdir()} <= {
        *("light.py", "kept.json", "__pycache__")
    }


def test_a_job_that_is_interrupted_in_its_first_run_says_that_nothing_is_kept(
    folder: pathlib.Path,
) -> None:
    command = [*COMMAND, "light:hangs", "--methods", "float32", "--batches", "4"]
    with started(
        [*command, "--json", "kept.json"], cwd=folder, env=sources()
    ) as process:
        until = time.monotonic() + 60
        # One that waits, and one that is measured.
        while len(processes_in(folder)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == ""
    nothing = "no run had ended, so that there is nothing to keep"
    assert err.endswith(f"tf-amp: interrupted; {nothing}.\n")
    assert not (folder / "kept.json").exists() and not processes_in(folder)


def test_how_often_a_program_is_run_is_said_before_and_how_long_it_takes_after_one(
    folder: pathlib.Path,
) -> None:
    command = [*COMMAND, "light:quick", "--batches", "4,8", *SHORT, "--rounds", "1"]
    keeping = ("--methods", "tf-amp:TUNE=on", "--learn", "--json", "kept.json")
    said = run([*command, *keeping], env=sources(), cwd=folder).err.splitlines()
    change = "--rounds and --methods change that."
    methods = "float32, float32 again, tf-amp:TUNE=on, at 2 batch sizes"
    # A run of tf-amp learns first.
    plan = f"light:quick is to be run 8 times: 1 round of {methods}. {change}"
    assert said[0] == f"tf-amp: {plan}"
    text = (
        r"tf-amp: a run takes about \d+ seconds?, and the other 7 take about \d+ .* ..."
    )
    assert re.fullmatch(text, said[1])
    again = run([*command[:-1], "2", *keeping], env=sources(), cwd=folder).err
    plan = f"light:quick is to be run 8 times more: 2 rounds of {methods}. {change}"
    assert again.startswith(f"tf-amp: {plan}\n")


def test_the_default_is_what_one_can_wait_for(folder: pathlib.Path) -> None:
    (folder / "idle.py").write_text("pass")
    said = run([*COMMAND, "idle.py"], env=sources(), cwd=folder).err.splitlines()[0]
    assert (
        "idle.py is to be run 9 times: 3 rounds of float32, float32 again, tf-amp."
        in said
    )


def wait_for(path: pathlib.Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.05)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command line is refused with."""
    assert cli.main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def test_what_was_measured_is_shown_where_it_cannot_be_kept(
    folder: pathlib.Path,
) -> None:
    done = run_python(
        f"""
        import os, pathlib, sys
        os.chdir({str(folder)!r})
        from tf_amp.commands import cli
        def fail(*_):
            raise OSError(28, "No space left on device")
        pathlib.Path.replace = fail
        sys.exit(cli.main(["bench", "light:quick", "--methods", "float32", "--rounds",
                           "9", "--batches", "4", *{SHORT!r}, "--json", "kept"]))
        """
    )
    assert done.code == 2 and "float32" in done.out
    cause = "kept cannot be written: No space left on device"
    assert done.err.splitlines()[1:] == [f"tf-amp: {cause}."]


@pytest.mark.parametrize(
    ("option", "missing", "extra"),
    [("--html", "plotly", "report"), ("--png", "matplotlib.figure", "plots")],
)
def test_a_missing_extra_is_said_before_anything_runs(
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    missing: str,
    extra: str,
) -> None:
    page.check_extra.cache_clear()
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, missing, None)
    error = refused(capsys, "light:quick", option, "written")
    assert f"pip install '.[{extra}]'" in error
    assert not (folder / "written").exists()


def test_the_one_that_waits_is_light(folder: pathlib.Path) -> None:
    # Linux counts the memory of the process that starts another as the other's, too.
    done = run_python(
        f"""
        import os, sys
        os.chdir({str(folder)!r})
        from tf_amp.commands import cli
        cli.main(["bench", "light:quick", "--methods", "float32", "--rounds", "1",
                  "--batches", "4", *{SHORT!r}])
        print(sorted({{"tensorflow", "keras", "jinja2", "plotly"}} & set(sys.modules)))
        """
    )
    assert done.lines()[-1] == "[]"


TRAIN = """
import sys
assert "tensorflow" not in sys.modules
import keras, numpy as np
batch = int(sys.argv[1])
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
model.compile("adam", "mse")
rng = np.random.default_rng(0)
x = rng.normal(size=(12 * batch, 64)).astype("float32")
model.fit(x, x, batch_size=batch, verbose=0, shuffle=False)
"""


def test_a_script_is_measured_under_each_method(folder: pathlib.Path) -> None:
    (folder / "train.py").write_text(TRAIN)
    methods = "tf-amp:O2,tf-amp:DEVICE_PROFILE=cpu-generic"
    command = ("train.py", "--methods", methods, "--batches", "8", "--rounds", "1")
    outputs = ("--json", "kept.json", "--html", "page.html")
    done = bench(folder, *command, *outputs, "--", "{batch}")
    assert done.code == 0, done.err
    assert done.err.endswith("tf-amp: written to page.html.\n")
    assert "train.py {batch}, train" in done.out
    assert "timed: batches of Keras' fit; one round." in done.out
    kept = kept_in(folder / "kept.json")
    rows = {row["method"]: row for row in kept["summary"]}
    assert [len(each["step_seconds"]) for each in kept["samples"]] == [12] * 4
    assert rows["float32"]["ops"]["low"] == 0 < rows["tf-amp:O2"]["ops"]["low"]
    assert rows["float32 again"]["error"] == 0.0 < rows["tf-amp:O2"]["error"] < 0.1
    assert all(row["peak_bytes"] > 2**27 for row in rows.values())
    assert all(row["first_step_seconds"] > 0.5 for row in rows.values())
    assert "tf-amp:O2" in (folder / "page.html").read_text()
    # Without 16-bit units what is left is a fusion.
    alone = rows["tf-amp:DEVICE_PROFILE=cpu-generic"]
    assert alone["ops"]["low"] == 0 and not alone["is_no_op"]
    assert (
        alone["ops"]["total"] < alone["float32_ops"] == rows["float32"]["ops"]["total"]
    )
    assert re.search(r"0 of \d+ changed", done.out)
    assert "stays float32, with 1 fusion that may make it faster" in done.out
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
