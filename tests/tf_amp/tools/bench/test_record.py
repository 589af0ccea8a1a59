"""What is kept, and from what a measurement goes on."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re

import pytest

from tests.tf_amp.tools.bench.bench_samples import job_of, record_of, samples_of
from tf_amp.errors import ConfigError
from tf_amp.tools.bench.journal import Sample
from tf_amp.tools.bench.measuring import runs_left
from tf_amp.tools.bench.record import Record, continued

FRESH = record_of(job_of())
MEASURED = record_of(
    job_of(), samples_of("float32", [0.1]), samples_of("float32 again", [0.1, 0.2])
)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "kept.json"


def test_a_kept_job_goes_on_where_it_stopped(path: pathlib.Path) -> None:
    assert continued(FRESH, path) == FRESH
    MEASURED.write(path)
    assert continued(FRESH, path) == MEASURED
    left = [(run.method, run.round) for run in runs_left(MEASURED, 3)]
    assert left == [("float32", 1), ("float32", 2), ("float32 again", 2)]


def test_a_process_that_failed_is_run_again(path: pathlib.Path) -> None:
    failed = Sample("float32", 8, 1, failure="ended by SIGKILL")
    MEASURED.with_sample(failed).write(path)
    assert continued(FRESH, path) == MEASURED


def test_a_process_that_failed_after_its_steps_is_not_run_again(
    path: pathlib.Path,
) -> None:
    (done,) = samples_of("float32", [0.1])
    late = dataclasses.replace(done, round=1, failure="after the steps that count")
    kept = MEASURED.with_sample(late)
    kept.write(path)
    assert continued(FRESH, path) == kept


def test_another_job_is_refused_with_what_differs(path: pathlib.Path) -> None:
    MEASURED.write(path)
    other = dataclasses.replace(FRESH, job=job_of("keras", mode="infer"))
    with pytest.raises(ConfigError, match='another job: mode was "train", now "infer"'):
        continued(other, path)
    newer = dataclasses.replace(FRESH.context, versions=(("Python", "4"),))
    with pytest.raises(ConfigError, match="versions was"):
        continued(dataclasses.replace(FRESH, context=newer), path)


def record_with_digest(digest: str) -> Record:
    target = dataclasses.replace(FRESH.job.target, digest=digest)
    return dataclasses.replace(FRESH, job=dataclasses.replace(FRESH.job, target=target))


def test_an_edited_program_is_refused_in_words(path: pathlib.Path) -> None:
    record_with_digest("one").write(path)
    assert continued(record_with_digest("one"), path) == record_with_digest("one")
    with pytest.raises(ConfigError, match="job: module:function was edited since"):
        continued(record_with_digest("two"), path)


def test_a_file_that_does_not_tell_which_text_was_measured_is_refused(
    path: pathlib.Path,
) -> None:
    record_with_digest("").write(path)
    with pytest.raises(ConfigError, match="does not say which text of module:func"):
        continued(record_with_digest("one"), path)


def test_another_day_is_no_other_job(path: pathlib.Path) -> None:
    MEASURED.write(path)
    later = dataclasses.replace(FRESH.context, date="tomorrow")
    found = continued(dataclasses.replace(FRESH, context=later), path)
    assert found.context.date == "today"


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 9}', "\xff"])
def test_a_file_of_something_else_is_refused_and_kept(
    path: pathlib.Path, text: str
) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match="--json: "):
        continued(FRESH, path)
    assert path.read_text() == text


def test_what_is_kept_is_standard_json_with_raw_steps(path: pathlib.Path) -> None:
    samples = samples_of("float32", [0.1], values=(1.0, None))
    record_of(job_of(), samples).write(path)
    kept = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert kept["samples"][0]["step_seconds"] == [9.0, 9.0, 9.0, 0.1, 0.1, 0.1]
    assert kept["samples"][0]["values"] == [1.0, None]
    assert kept["summary"][0]["step_seconds"] == 0.1
    assert continued(FRESH, path).samples == tuple(samples)


def test_a_file_is_written_whole_or_not_at_all(path: pathlib.Path, monkeypatch) -> None:
    MEASURED.write(path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        FRESH.write(path)
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job", None),
        ("job", {"target": 3}),
        ("samples", 3),
        ("samples", [{}]),
        ("context", {}),
    ],
)
def test_a_file_that_somebody_has_changed_is_refused_by_its_name(
    field: str, value: object, path: pathlib.Path
) -> None:
    MEASURED.write(path)
    kept = {**json.loads(path.read_text()), field: value}
    path.write_text(json.dumps(kept))
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        continued(FRESH, path)


@pytest.mark.parametrize("seconds", ["fast", -1.0, math.nan, 10**400])
def test_times_that_are_none_are_refused(seconds: object, path: pathlib.Path) -> None:
    MEASURED.write(path)
    kept = json.loads(path.read_text())
    kept["samples"][0]["step_seconds"] = [seconds]
    path.write_text(json.dumps(kept))
    with pytest.raises(ConfigError, match="does not hold what"):
        continued(FRESH, path)


def test_a_file_nested_without_end_is_refused(path: pathlib.Path) -> None:
    path.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="cannot be read"):
        continued(FRESH, path)
