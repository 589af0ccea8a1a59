"""What a process writes down, and the sample that is made of it."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from typing import Any

import pytest

from tf_amp.tools.bench.job import Run
from tf_amp.tools.bench.journal import (
    Ended,
    Journal,
    OpCounts,
    lines_of,
    sample_of,
    sampled_values,
)

RUN = Run("tf-amp", 8, 2)
WELL = Ended(0, False, "", 7, 100.0)
MIXED = {"total": 5, "low": 2, "casts": 1, "onednn": 0}
PLAIN = {"total": 3, "low": 0, "casts": 0, "onednn": 0}


def steps(kind, *seconds, count=1):
    ends = [101.0]
    for each in seconds:
        ends.append(ends[-1] + each)
    return [
        ["step", kind, begin, end, count] for begin, end in itertools.pairwise(ends)
    ]


def calls(number, begins, seconds):
    return [["call", number, begin, begin + seconds] for begin in begins]


def sample(lines, mode="train", ended=WELL):
    return sample_of(RUN, mode, lines, ended)


def test_a_step_takes_the_median_of_the_later_half():
    found = sample(steps("train", 9.0, 8.0, 7.0, 1.0, 6.0, 2.0))
    assert found.seconds == 2.0
    assert found.step_seconds == (9.0, 8.0, 7.0, 1.0, 6.0, 2.0)
    assert found.first_step_seconds == 10.0
    assert (found.method, found.batch, found.round) == ("tf-amp", 8, 2)
    assert found.timed == "batches of Keras' fit"
    # Several steps in one call share its time.
    assert sample(steps("train", *[4.0] * 6, count=4)).seconds == 1.0


def test_the_mode_says_which_loop_of_keras_counts():
    lines = steps("train", *[1.0] * 6) + steps("test", *[2.0] * 6)
    assert sample(lines).seconds == 1.0
    assert sample(lines, "infer").seconds == 2.0
    lines += steps("predict", *[3.0] * 6)
    assert sample(lines, "infer").seconds == 3.0


def test_without_keras_the_function_called_most_counts_with_what_is_between():
    lines: list[list[Any]] = [
        ["function", 0, "__inference_train_step_12", MIXED],
        ["function", 1, "__inference_build_3", PLAIN],
        ["values", "__inference_train_step_12", [1.0]],
        ["values", "__inference_build_3", [9.0]],
        *calls(1, [100.0], 5.0),
        *calls(0, [110.0, 112.0, 114.0, 116.0, 118.0, 120.0, 122.0], 1.0),
    ]
    found = sample(lines)
    assert found.timed == "calls of train_step"
    assert found.step_seconds == (2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0)
    assert found.values == (1.0,)


def test_operations_are_those_of_graphs_called_among_the_timed_steps():
    functions: list[list[Any]] = [
        ["function", 0, "step", MIXED],
        ["function", 1, "step", PLAIN],
    ]
    timed = steps("train", *[1.0] * 8)
    early, late = calls(0, [101.5, 102.5], 0.1), calls(1, [105.5, 106.5], 0.1)
    settled = sample([*functions, *timed, *early, *late])
    assert settled.ops is not None and settled.ops.low == 0
    alternating = sample([*functions, *timed, *early, *late, *calls(0, [107.5], 0.1)])
    assert alternating.ops is not None and alternating.ops.total == MIXED["total"]
    assert sample([*functions, *timed]).ops is None


@pytest.mark.parametrize(
    ("lines", "ended", "reason"),
    [
        ([], WELL, "no step was seen: neither batches of Keras nor calls"),
        ([], dataclasses.replace(WELL, is_out_of_time=True), "seen in its time"),
        (steps("train", 1.0), WELL, "1 steps were seen (batches of Keras' fit); need"),
    ],
    ids=["none", "out of time", "few"],
)
def test_why_nothing_was_measured_is_said(lines, ended, reason):
    assert reason in sample(lines, ended=ended).failure


def test_the_steps_of_a_process_that_was_ended_or_failed_after_them_are_used():
    ended = sample(steps("train", *[1.0] * 6), ended=Ended(-15, True, "", 7, 100.0))
    assert ended.seconds == 1.0 and ended.was_ended and not ended.failure
    failed = dataclasses.replace(WELL, status=1, errors="OSError: disk full")
    found = sample(steps("train", *[1.0] * 6), ended=failed)
    assert found.is_measured and found.seconds == 1.0
    assert found.failure == (
        "after the steps that count: exit status 1: OSError: disk full"
    )
    few = sample(steps("train", 1.0), ended=failed)
    assert not few.is_measured
    assert few.failure == "exit status 1: OSError: disk full"


TRACEBACK = """epoch 1
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
"""


@pytest.mark.parametrize(
    ("status", "errors", "said"),
    [
        (1, f"{TRACEBACK}ValueError: one line.\n", ": ValueError: one line"),
        (1, f"{TRACEBACK}ValueError: a\n  b\nc\n", ": ValueError: a ... c"),
        (
            1,
            f"{TRACEBACK}\n{TRACEBACK}KeyError: 'x'\nnote\n",
            ": KeyError: 'x' ... note",
        ),
        (1, f"{TRACEBACK}E: {'x' * 900}\nend", f": E: {'x' * 92} ... end"),
        (1, "first\nlast\n", ": last"),
        (1, TRACEBACK, ": main()"),
        (1, "\n", ""),
        (3, f"{TRACEBACK}ValueError: logged\nend\n", ": end"),
    ],
)
def test_a_failure_is_told_in_one_line_with_the_type_of_the_exception(
    status, errors, said
):
    ended = dataclasses.replace(WELL, status=status, errors=errors)
    assert ended.failure == f"exit status {status}{said}"


def test_many_steps_are_thinned():
    found = sample(steps("train", *[0.5] * 5000))
    assert len(found.step_seconds) == 1667 and found.seconds == 0.5


def test_what_tf_amp_says_and_logs_is_noted():
    log = "W0000 failures.py:76] graph 'step' stays float32: KeyError: 'x' (AMP202)\n"
    said = "x\ntf-amp: stays float32\ntf-amp: y\n"
    for errors, note, warning in (
        (said, "stays float32", ""),
        (
            f"more\n{log}more\n",
            "",
            "graph 'step' stays float32: KeyError: 'x' (AMP202)",
        ),
    ):
        found = sample([], ended=dataclasses.replace(WELL, errors=errors))
        assert (found.note, found.warning) == (note, warning)


def test_lines_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    assert journal.function("step", OpCounts(3, 2, 1, 0)) == 0
    journal.call(0, 1.0, 2.0)
    journal.step("train", 1.0, 2.0, 4)
    journal.values("train", 0.5)
    counts = {"total": 3, "low": 2, "casts": 1, "onednn": 0}
    assert lines_of(path) == [
        ["function", 0, "step", counts],
        ["call", 0, 1.0, 2.0],
        ["step", "train", 1.0, 2.0, 4],
        ["values", "train", [0.5]],
    ]


def test_a_torn_line_and_a_missing_file_are_nothing(tmp_path):
    path = tmp_path / "journal"
    assert lines_of(path) == []
    Journal(path).call(0, 1.0, 2.0)
    with path.open("a") as file:
        file.write('["call", 0')
    assert lines_of(path) == [["call", 0, 1.0, 2.0]]


def test_a_forked_child_writes_nothing(tmp_path):
    path = tmp_path / "journal"
    journal = Journal(path)
    child = os.fork()
    if not child:
        journal.call(0, 1.0, 2.0)
        os._exit(0)
    os.waitpid(child, 0)
    assert lines_of(path) == []


def test_the_clock_stands_still_while_a_call_is_written_or_looked_at(
    tmp_path, monkeypatch
):
    journal = Journal(tmp_path / "journal")
    monkeypatch.setattr(journal, "_write", lambda *_: time.sleep(0.2))
    begin = journal.now()
    journal.call(0, 1.0, 2.0)
    with journal.looking():
        time.sleep(0.2)
    assert journal.now() - begin < 0.2


def test_no_more_is_written_of_one_thing_than_is_of_use(tmp_path, monkeypatch):
    monkeypatch.setattr("tf_amp.tools.bench.journal._MOST_LINES", 2)
    journal = Journal(tmp_path / "journal")
    for _ in range(3):
        journal.call(0, 1.0, 2.0)
        journal.call(1, 1.0, 2.0)
    assert len(lines_of(tmp_path / "journal")) == 4


def test_results_are_sampled_evenly_and_counts_left_out():
    import numpy as np

    ramp = np.arange(10_000, dtype=np.float32)
    found = sampled_values({"b": ramp, "a": 0.5, "count": np.int64(3), "no": None})
    assert found[0] == 0.5 and len(found) == 1 + 128
    assert found[1] == 0.0 and found[-1] == 9999.0
    assert sampled_values(None) == sampled_values(np.zeros((0,))) == []


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        "{}",
        "3",
        '["call", 0, 1.0]',
        '["call", 0, 1.0, "later"]',
        '["call", 0, 2.0, 1.0]',
        '["call", 0, 1.0, Infinity]',
        '["step", "train", 1.0, 2.0, 0]',
        '["values", "train", ["x"]]',
        '["function", 0, "step", {"total": 1}]',
        "\x00\xff",
    ],
)
def test_a_line_that_no_journal_has_is_left_out(line, tmp_path, caplog):
    path = tmp_path / "journal"
    Journal(path).call(0, 1.0, 2.0)
    with path.open("a") as file:
        file.write(f"{line}\n")
    assert lines_of(path) == [["call", 0, 1.0, 2.0]]
    assert caplog.text.count(str(path)) == 1
