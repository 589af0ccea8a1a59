"""Trainings of several processes, of which all run one program of `jobs.txt`."""

import ast
import json
import pathlib

from tests.clusters import run_job
from tests.printed_programs import beginning

JOBS = pathlib.Path(__file__).with_name("jobs.txt")
# They are told of mixed precision by nothing but this.
IN_FLOAT16 = {"TF_ENABLE_AUTO_MIXED_PRECISION": "float16", "TF_AMP_OPT_LEVEL": "O2"}


def told_by(lines):
    """Return values by the name that each line begins with."""
    words = (line.partition(" ") for line in lines)
    return {name: json.loads(rest) for name, _, rest in words}


def test_two_workers_scale_and_skip_as_one():
    """Keras 3 trains in a loop of its own, tf_keras by `fit`."""
    job = beginning(JOBS, "two workers of a mirrored strategy")
    first, second = map(told_by, run_job(job, {"worker": 2}, IN_FLOAT16).values())

    assert first["dtype"] == second["dtype"] == ["float16"]
    for each in (first, second):
        distance, scale, good, skipped = each["distance"]
        # A sum over 16 rows in another order, five steps of Adam on weights up to 1.
        assert distance < 5 * 16 * 2.0**-23
        assert (scale, good, skipped) == (2**15, 5, 0)
    for way in ("keras-0", "keras-1", "fit-0", "fit-1", "given-0", "given-1"):
        # Scale, counters and weights of both are the same to the last bit.
        assert first[way] == second[way]
        assert first[way][:3] == [True, 2.0, True]
    assert first["fit-1"][5] == 4


# So high that the first steps overflow, in bfloat16 as in float32.
HIGH = f"dynamic:initial={2.0**126},maximum={2.0**126},growth_interval=3"


def trained(folder, profile, resumed):
    """Run a job of two workers; return what each prints."""
    env = {
        "TF_ENABLE_AUTO_MIXED_PRECISION": "bfloat16",
        "TF_AMP_LOSS_SCALE": HIGH,
        "TF_AMP_DEVICE_PROFILE": profile,
        "TF_AMP_TUNE": "off",
        "FOLDER": str(folder),
        "RESUMED": str(resumed),
    }
    job = beginning(JOBS, "two workers of a mirrored strategy write checkpoints")
    return run_job(job, {"worker": 2}, env)


def test_two_workers_write_one_checkpoint_and_resume_from_it_bit_for_bit(tmp_path):
    """They train by tf_keras' `fit`.

    Its callback has the chief write to the folder of the user, and the other worker to
    one that it removes.
    """
    chief, other = ("worker", 0), ("worker", 1)
    unbroken = trained(tmp_path, "cpu-avx512-bf16", 0)
    weights = [f"m-{epoch}.weights.h5" for epoch in (1, 2, 3)]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == sorted([*weights, *(f"{name}.tf_amp.json" for name in weights)])
    assert unbroken[chief][2] == "[True, True, True]"
    assert unbroken[other][2] == "[False, False, False]"

    figures, plans = unbroken[chief][:2]
    # Some of the nine steps overflow, and some do not.
    assert 0 < int(figures.split()[3]) < 9
    assert any(low for _, low in ast.literal_eval(plans))
    assert unbroken[other][:2] == [figures, plans]

    # By the prices of this one nothing would be in 16 bits.
    resumed = trained(tmp_path, "cpu-generic", 2)
    assert resumed[chief] == [figures, plans, "[True]"]
    assert resumed[other] == [figures, plans, "[False]"]


def test_servers_rewrite_and_scale_each_for_itself():
    """They compute as the coordinator says, and run nothing but `join`."""
    counts = {"worker": 2, "ps": 1, "chief": 1}
    job = beginning(JOBS, "workers of a parameter server")
    lines = run_job(job, counts, IN_FLOAT16, serving=("worker", "ps"))["chief", 0]
    told = told_by(lines)

    assert told["environment"] == ["float16"]
    assert told["disabled"] == ["float32"]
    assert told["bfloat16"] == ["bfloat16"]
    assert told["float32"] == ["float32"]
    first, _, applied = told["good"]
    assert applied == 1
    kept, scales, skipped, lowest = told["bad"]
    assert kept
    # The scale of the worker that overflowed is halved, the other's is what it was.
    assert sorted(scales) == [first[0] / 2, first[0]]
    assert sorted(skipped) == [0, 1]
    assert lowest == first[0] / 2
    assert told["mixed"] == [True, True, 4]
    assert told["skipped"] == [3]


def test_a_worker_that_overflows_neither_pushes_nor_blocks_the_other():
    """Gradients of both are alike, and exact in float16.

    After t steps the weight is (1 - 2**-t) / 8, unless something else than true
    gradients of two pushes was averaged.
    """
    counts = {"worker": 2, "ps": 1}
    job = beginning(JOBS, "workers of SyncReplicasOptimizer")
    told = run_job(job, counts, IN_FLOAT16, serving=("ps",))
    steady, overflowing = (
        [json.loads(line) for line in told["worker", task]] for task in (0, 1)
    )

    for step, weight, row, *_ in (*steady, *overflowing):
        assert weight in {(1 - 2.0**-t) / 8 for t in (step, step + 1)}
        assert row in {1 - (7 / 8) ** t for t in (step, step + 1)}
    assert max(line[0] for line in steady) == 7
    assert {line[4] for line in steady} == {2.0**15}
    assert {line[5] for line in steady} == {0}
    for _, _, _, runs, scale, skipped, _ in overflowing:
        assert skipped == max(0, runs - 2)
        assert scale == 2.0 ** (15 - skipped)
    assert overflowing[-1][5] >= 3
    assert all(line[-1] for line in (steady[-1], overflowing[-1]))


def test_towers_of_two_processes_skip_together():
    counts = {"client": 1, "server": 1}
    job = beginning(JOBS, "towers of two processes")
    told = run_job(job, counts, IN_FLOAT16, serving=("server",))["client", 0]
    *steps, low = map(json.loads, told)

    assert low
    # Gradients are exact: -1, then -0.5 beside half of the last one.
    assert steps == [
        [1, 1 / 16, 2.0**15, 0],
        [1, 1 / 16, 2.0**14, 1],
        [1, 1 / 16, 2.0**13, 2],
        [1, 1 / 16, 2.0**12, 3],
        [2, 1 / 16 + 1 / 16, 2.0**12, 3],
    ]
