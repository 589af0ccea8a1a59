"""The benchmark of models of a GPU's size, in small sizes on a CPU."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.gpu import report
from benchmarks.gpu.figures import Figures, FirstSteps, Measured
from benchmarks.gpu.jobs import (
    FULL,
    LIVING_AT_ONCE,
    MODELS,
    SMALL,
    VARIANTS,
    Job,
    jobs,
    model_of,
)
from benchmarks.gpu.turns import measured
from benchmarks.processes import ROOT, worker_environment
from benchmarks.results import kept_table
from benchmarks.steps import build_model, step_of
from tests.long import parameters
from tf_amp.report.codec import from_plain
from tf_amp.tools.bench.job import KERAS, OURS, TENSORFLOW

SETTINGS = ("--size", SMALL, "--megabytes", "0")
SHORT = ("--rounds", "2", "--seconds", "0.02")


def command(*arguments: str) -> list[str]:
    given = ("--size", SMALL, *SHORT, *arguments)
    return [sys.executable, "-m", "benchmarks.gpu", *given]


def environment() -> dict[str, str]:
    return worker_environment() | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "RESULTS.md"
    words = command("--models", "wide_deep", "--output", str(output))
    first = subprocess.Popen(
        words, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    printed = []
    while not (printed and printed[-1].startswith("wide_deep, graph")):
        printed.append(first.stdout.readline())
        assert printed[-1], "".join(printed)
    while not (workers := children_of(first.pid)):
        assert first.poll() is None
    first.kill()
    first.wait()
    assert workers and ended(workers)
    kept, _ = kept_table("gpu", tmp_path / "raw") or (None, None)
    assert [each["job"]["model"] for each in kept["measured"]] == ["wide_deep"]

    second = subprocess.run(
        words, cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert second.returncode == 0, second.stderr
    assert "wide_deep, compiled: float32 keras ours: kept from before" in second.stdout
    after, context = kept_table("gpu", tmp_path / "raw") or (None, None)
    assert after["measured"][0] == kept["measured"][0]
    results = [from_plain(Measured, each) for each in after["measured"]]
    expected = [job for job in jobs() if job.model == "wide_deep"]
    assert [each.job for each in results] == expected
    for each in results:
        for figures in each.figures:
            assert not figures.failure and len(figures.seconds) == 2
            assert figures.first is not None and len(figures.first.losses) == 8
            assert figures.first.peak_bytes > 0
            # All begin with the same weights and see the same batch.
            error = each.losses_error(figures)
            assert error is not None and error < 0.01
            is_ours = VARIANTS[figures.variant].method == OURS
            assert (figures.first.predicted is not None) == is_ours
    text = output.read_text()
    assert "### wide & deep" in text
    assert "| TensorFlow's pass, bfloat16 | graph mode |" in text
    assert f"`python -m benchmarks.gpu {' '.join(words[3:])}`, 2 rounds" in text
    assert text.count("failed") == 0

    for again in (False, True):
        # The first process of a job would not be started.
        none_left = [*words, "--minutes", "0", *(["--again"] if again else [])]
        third = subprocess.run(
            none_left, cwd=ROOT, env=environment(), capture_output=True, text=True
        )
        assert third.returncode == 0, third.stderr
        is_late = "Time is up; the same command measures what is left." in third.stdout
        assert is_late == again
        assert kept_table("gpu", tmp_path / "raw") == (after, context)


def children_of(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [int(each) for t in tasks for each in (t / "children").read_text().split()]


def ended(pids: Sequence[int]) -> bool:
    """Return whether all processes end within some seconds."""
    until = time.monotonic() + 100
    while any(map(is_running, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def is_running(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return False
    return state.split()[0] != "Z"


@pytest.mark.long
def test_variants_without_room_are_rows_and_no_error() -> None:
    job = Job("wide_deep", False, ("float32", "ours"))
    limited = environment() | {
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_CPU_BFC_MEM_LIMIT_IN_MB": "2",
    }
    until = time.monotonic() + 100
    found = measured(job, SETTINGS, limited, rounds=1, seconds=0.0, until=until)
    assert found is not None
    assert all(each.failure and not each.seconds for each in found.figures)
    assert report.table([found]).count("| graph mode | out of memory |") == 2


def test_nothing_begins_once_time_is_up() -> None:
    job = next(jobs())
    late = measured(job, SETTINGS, {}, rounds=1, seconds=0.0, until=time.monotonic())
    assert late is None


def test_models_of_a_gpus_size_need_a_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--models", "mlp"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no GPU is here; --size small runs on a CPU" in done.stderr


def test_the_most_telling_models_come_first() -> None:
    found = list(jobs())
    assert len(set(found)) == len(found)
    assert all(len(job.variants) <= LIVING_AT_ONCE for job in found)
    assert [*dict.fromkeys(job.model for job in found)] == [*MODELS]
    first = ("bert_4", "transformer_1024", "resnet50")
    assert [job.model for job in found[:6]] == [m for m in first for _ in range(2)]
    for model in MODELS:
        for is_compiled in (True, False):
            mode = (model, is_compiled)
            of_mode = [job for job in found if (job.model, job.is_compiled) == mode]
            if mode == ("lstm", True):
                assert not of_mode
                continue
            assert all(job.variants[0] == "float32" for job in of_mode)
            methods = {VARIANTS[n].method for job in of_mode for n in job.variants}
            assert methods >= {KERAS, OURS}
            assert (TENSORFLOW in methods) == (not is_compiled)


@pytest.mark.parametrize("name", parameters(MODELS, ("mobilenet_v3", "resnet50")))
def test_each_model_is_built_in_both_sizes_and_run_in_the_small_one(name: str) -> None:
    large, small = model_of(name, FULL), model_of(name, SMALL)
    assert large.optimizer == small.optimizer and large.module == small.module
    assert large.sizes.keys() <= small.sizes.keys() | {"depth"}
    step = step_of(build_model(small), small, "infer")
    assert np.isfinite(np.asarray(step())).all()


def figures(
    name: str,
    *seconds: float,
    predicted: tuple[float, float] | None = None,
    peak: int = 2**20,
    losses: tuple[float, ...] = (2.0, 1.0),
) -> Figures:
    dtype = "float32" if name == "float32" else "bfloat16"
    first = FirstSteps("a GPU", dtype, 9.0, losses, peak, predicted)
    return Figures(name, first, seconds)


def test_tf_amp_is_held_against_the_better_peer_of_both_types() -> None:
    ours = figures("ours", 0.5, 0.5, predicted=(1.2, 0.7), peak=3 * 2**20)
    first = Measured(
        Job("mlp", True, ("float32", "keras", "ours")),
        (
            figures("float32", 1.0, 1.0),
            figures("keras", 0.8, 0.8, losses=(2.0, 1.5)),
            ours,
        ),
    )
    # A float32 of its own, which is twice as slow.
    second = Measured(
        Job("mlp", True, ("float32", "keras_second")),
        (figures("float32", 2.0, 2.0), figures("keras_second", 0.8, 0.8)),
    )
    text = report.markdown([first, second], FULL)
    assert "| float32 | compiled | 1000 (1000-1000) | - | - | - | 1 | - |" in text
    assert text.count("| float32 |") == 1
    assert "| 2.00 (2.00-2.00) | 0.80 | 0 | 3 | 1200 -> **700** |" in text
    assert "| 1.25 (1.25-1.25) | - | 0.2 | 1 | - |" in text
    assert (
        "- compiled: tf-amp in its faster type is 0.80 times as fast as the better "
        "peer (geometric mean of 1 models; the lowest is 0.80)." in text
    )
    assert "- tf-amp's steps are within 25% of what it predicted for 0 of 1" in text
    assert "in 1 of 1 cases. The highest is 3.00 times." in text


def test_a_variant_that_failed_is_named_with_its_reason() -> None:
    gone = Figures("keras", failure="exit status 1: ValueError: no such policy")
    job = Job("mlp", False, ("float32", "keras"))
    found = Measured(job, (figures("float32", 1.0), gone))
    text = report.markdown([found], FULL)
    assert "| Keras' policy | graph mode | failed | - |" in text
    assert "- MLP, graph mode: Keras' policy failed: exit status 1: ValueError" in text
