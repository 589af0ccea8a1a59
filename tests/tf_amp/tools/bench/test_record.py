"""What is kept of a measurement, what it comes to, and how that is shown."""

import dataclasses
import json
import math
import re

import pytest

from tests.processes import run
from tests.tf_amp.tools.bench.bench_samples import job_of, record_of, samples_of
from tf_amp.errors import ConfigError
from tf_amp.tools.bench.answer import answers
from tf_amp.tools.bench.job import FUNCTION, SCRIPT, Program
from tf_amp.tools.bench.journal import Sample
from tf_amp.tools.bench.record import (
    continued,
    largest_error,
    revision_of,
    runs_left,
    speed_up_of,
    summarized,
)
from tf_amp.tools.bench.rendering import (
    bars_of,
    cells,
    page_of,
    png_of,
    print_record,
    remarks,
)

FRESH = record_of(job_of())
MEASURED = record_of(
    job_of(), samples_of("float32", [0.1]), samples_of("float32 again", [0.1, 0.2])
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept.json"


def test_a_kept_job_goes_on_where_it_stopped(path):
    assert continued(FRESH, path) == FRESH
    MEASURED.write(path)
    assert continued(FRESH, path) == MEASURED
    left = [(run.method, run.round) for run in runs_left(MEASURED, 3)]
    assert left == [("float32", 1), ("float32", 2), ("float32 again", 2)]


def test_a_process_that_failed_is_run_again_if_not_after_its_steps(path):
    (done,) = samples_of("float32", [0.1])
    late = dataclasses.replace(done, round=1, failure="after the steps that count")
    failed = Sample("float32", 8, 2, failure="ended by SIGKILL")
    kept = MEASURED.with_sample(late)
    kept.with_sample(failed).write(path)
    assert continued(FRESH, path) == kept


def test_another_job_is_refused_with_what_differs(path):
    MEASURED.write(path)
    other = dataclasses.replace(FRESH, job=job_of("keras", mode="infer"))
    with pytest.raises(ConfigError, match='another job: mode was "train", now "infer"'):
        continued(other, path)
    newer = dataclasses.replace(FRESH.context, versions=(("Python", "4"),))
    with pytest.raises(ConfigError, match="versions was"):
        continued(dataclasses.replace(FRESH, context=newer), path)


def record_with_digest(digest):
    target = dataclasses.replace(FRESH.job.target, digest=digest)
    return dataclasses.replace(FRESH, job=dataclasses.replace(FRESH.job, target=target))


def test_a_file_that_does_not_tell_which_text_was_measured_is_refused(path):
    record_with_digest("").write(path)
    with pytest.raises(ConfigError, match="does not say which text of module:func"):
        continued(record_with_digest("one"), path)


def test_another_day_is_no_other_job(path):
    MEASURED.write(path)
    later = dataclasses.replace(FRESH.context, date="tomorrow")
    found = continued(dataclasses.replace(FRESH, context=later), path)
    assert found.context.date == "today"


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 9}', "\xff", "[" * 100_000], ids=range(5)
)
def test_a_file_of_something_else_is_refused_and_kept(path, text):
    path.write_text(text)
    with pytest.raises(ConfigError, match="--json: "):
        continued(FRESH, path)
    assert path.read_text() == text


def test_what_is_kept_is_standard_json_with_raw_steps(path):
    samples = samples_of("float32", [0.1], values=(1.0, None))
    record_of(job_of(), samples).write(path)
    kept = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert kept["samples"][0]["step_seconds"] == [9.0, 9.0, 9.0, 0.1, 0.1, 0.1]
    assert kept["samples"][0]["values"] == [1.0, None]
    assert kept["summary"][0]["step_seconds"] == 0.1
    assert continued(FRESH, path).samples == tuple(samples)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job", None),
        ("samples", [{}]),
        ("context", {}),
        *(("step_seconds", each) for each in ("fast", -1.0, math.nan, 10**400)),
    ],
)
def test_a_file_that_was_changed_is_refused_by_its_name(field, value, path):
    MEASURED.write(path)
    kept = json.loads(path.read_text())
    if field == "step_seconds":
        kept["samples"][0][field] = [value]
    else:
        kept[field] = value
    path.write_text(json.dumps(kept))
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        continued(FRESH, path)


FLOAT32 = samples_of("float32", [0.100, 0.100, 0.100])
AGAIN = samples_of("float32 again", [0.105, 0.105, 0.100])


def row_of(samples, again=AGAIN):
    job = job_of(samples[0].method)
    return summarized(job, [*FLOAT32, *again, *samples])[-1]


def test_a_speed_up_is_of_medians_with_the_spread_of_the_rounds():
    found = speed_up_of({0: 2.0, 1: 4.0, 2: 5.0}, {0: 4.0, 1: 4.0, 3: 8.0})
    assert found is not None
    assert (found.median, found.lowest, found.highest) == (1.0, 1.0, 2.0)
    assert speed_up_of({0: 1.0}, {1: 1.0}) is None


def test_an_error_is_relative_and_the_largest_of_the_rounds():
    reference = {0: (3.0, 4.0), 1: (3.0, 4.0), 2: (0.0,)}
    assert largest_error({0: (3.0, 4.0), 1: (3.0, 4.5)}, reference) == 0.1
    assert largest_error({2: (0.0,)}, reference) == 0.0
    assert largest_error({0: (3.0,)}, reference) is None
    assert largest_error({0: ()}, {0: ()}) is None
    error = largest_error({0: (3.0, math.nan)}, reference)
    assert error is not None and math.isnan(error)


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        ([0.050, 0.050, 0.050], "faster"),
        ([0.098, 0.096, 0.097], "within noise"),
        ([0.104, 0.104, 0.104], "within noise"),
        # As printed: 1.05 beside a noise of 5%.
        ([0.0951, 0.0951, 0.0951], "within noise"),
        ([0.110, 0.110, 0.110], "slower"),
        ([0.110, 0.200, 0.099], "within noise"),
        ([0.050, 0.050, 0.150], "within noise"),
        ([0.050, 0.050], "too few rounds"),
    ],
)
def test_a_difference_counts_beyond_the_noise_in_each_of_three_rounds(seconds, verdict):
    assert row_of(samples_of("keras", seconds, low=1)).verdict == verdict


@pytest.mark.parametrize(
    ("again", "seconds", "verdict"),
    [
        # Another program made one process of float32 slow, which hides nothing.
        ([0.100, 0.205, 0.100], [0.050, 0.055, 0.052], "faster"),
        ([0.105, 0.205, 0.100], [0.120, 0.210, 0.130], "slower"),
        # The noise is that of most rounds.
        ([0.100, 0.205, 0.210], [0.050, 0.055, 0.052], "within noise"),
        # Not faster than both processes of float32 in one round.
        ([0.100, 0.100, 0.050], [0.060, 0.060, 0.060], "within noise"),
        ([0.100, 0.100, 0.100, 0.050], [0.060] * 4, "within noise"),
        ([0.100, 0.100, 0.100, 0.100, 0.050], [0.060] * 5, "faster"),
        ([0.100] * 5, [0.060, 0.060, 0.060, 0.110, 0.120], "within noise"),
    ],
)
def test_one_busy_round_hides_no_difference(again, seconds, verdict):
    job, float32 = job_of("keras"), samples_of("float32", [0.1] * len(again))
    samples = [*float32, *samples_of("float32 again", again)]
    samples += samples_of("keras", seconds, low=1)
    assert summarized(job, samples)[-1].verdict == verdict


def test_what_own_steps_showed_stands_below_the_table():
    said = "`fit`: 1.80 times as fast as float32 in 9 pairs of its own steps (AMP104)"
    ours = [
        dataclasses.replace(each, compared=said)
        for each in samples_of("tf-amp", [0.05], low=3)
    ]
    record = record_of(job_of("tf-amp"), FLOAT32, AGAIN, ours)
    assert f"tf-amp, batch 8, within one process: {said}" in remarks(record)
    (answer,) = answers(record)
    assert answer.endswith("Its own steps, in turn within one process, are above.")


def test_without_float32_nothing_is_compared():
    (row,) = summarized(job_of("keras"), samples_of("keras", [0.1]))
    assert row.speed_up is None and row.error is None and row.verdict == ""
    assert row.items_per_second == pytest.approx(80.0)


def test_the_repetition_shows_the_noise():
    row = summarized(job_of(), [*FLOAT32, *AGAIN])[-1]
    assert cells(row)[4:6] == ("0.95 (0.95-1.00)", "noise 5%")


def test_a_fused_graph_in_float32_is_no_no_op():
    note = "`fit` stays float32, with 2 fusions: why (AMP102)"
    fused = [
        dataclasses.replace(each, note=note)
        for each in samples_of("tf-amp", [0.05, 0.05, 0.05], total=7)
    ]
    record = record_of(job_of("tf-amp"), FLOAT32, AGAIN, fused)
    row = record.summary[-1]
    assert not row.is_no_op and cells(row)[-1] == "0 of 7 changed"
    (said,) = (each for each in remarks(record) if "operations" in each)
    graph = "float32 with a changed graph, of 7 operations in place of 9"
    assert said == f"tf-amp, batch 8: {graph}: {note}"
    fast = "tf-amp makes the steps of module:function 2.00 times as fast (2.00 to 2.00)"
    said = f"At batch size 8: {fast}, in float32, by fusions alone."
    assert [*answers(record)] == [said]
    page = page_of(record)
    assert "no-op" not in page and '"shape": [""]' in page
    # In 16 bits its graph is another one, too.
    low = record_of(job_of("tf-amp"), FLOAT32, samples_of("tf-amp", [0.1], low=3))
    assert cells(low.summary[-1])[-1] == "3 of 9"
    # Without float32 nothing is known of its graph.
    alone = record_of(job_of("tf-amp"), samples_of("tf-amp", [0.1], total=7))
    assert cells(alone.summary[-1])[-1] == "0 of 7"


@pytest.mark.parametrize(("low", "is_no_op"), [(0, True), (3, False), (None, False)])
def test_a_method_that_ran_nothing_in_16_bits_is_a_no_op(low, is_no_op):
    samples = samples_of("tensorflow", [0.1], low=low)
    assert row_of(samples).is_no_op is is_no_op
    (first, *others) = samples
    warned = [dataclasses.replace(first, warning="graph 'g' stays float32: why")]
    said = remarks(record_of(job_of("tensorflow"), FLOAT32, AGAIN, warned + others))
    assert "tensorflow, batch 8: graph 'g' stays float32: why" in said
    assert any("tensorflow, batch 8: a no-op" in each for each in said) is is_no_op
    assert ("no-op" in cells(row_of(samples))[-1]) is is_no_op


def test_what_the_table_cannot_show_is_remarked():
    failed = Sample("keras", 8, 0, failure="exit status 1: no memory")
    mixed = samples_of("float32", [0.1], low=4)
    drawn = samples_of("float32 again", [0.1], values=(1.0, 2.1))
    broken = samples_of("tensorflow", [0.1], values=(1.0, math.nan), low=1)
    job = job_of("keras", "tensorflow")
    said = "\n".join(remarks(record_of(job, mixed, drawn, broken, [failed])))
    assert "keras, batch 8: failed, exit status 1: no memory." in said
    assert "float32, batch 8: executed 4 16-bit operations" in said
    assert "float32 again, batch 8: results are off by 4.5e-02" in said
    assert "tensorflow, batch 8: results are not finite." in said


def test_a_script_with_its_own_batch_size_has_no_items_per_second():
    samples = samples_of("float32", [0.1], batch=None)
    (row,) = summarized(job_of(batches=(None,)), samples)
    assert row.items_per_second is None and cells(row)[0] == "-"


def test_steps_before_a_failure_count_and_a_process_without_any_is_told_first():
    late, early = samples_of("keras", [0.05, 0.05], low=1)
    late = dataclasses.replace(late, failure="after the steps that count: late")
    early = dataclasses.replace(early, step_seconds=(), failure="early")
    row = row_of([late])
    assert (row.rounds, row.step_seconds) == (1, 0.05)
    assert row.failure == "after the steps that count: late"
    assert "too few rounds, failed" in cells(row)
    assert row_of([late, early]).failure == "early"


AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b")


def git(folder, *arguments):
    return "\n".join(run(["git", "-C", str(folder), *AUTHOR, *arguments]).lines())


@pytest.fixture
def folder(tmp_path):
    for name in ("code.py", "kept/results.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_revision_has_a_plus_where_files_differ(folder):
    revision = git(folder, "rev-parse", "--short=12", "HEAD")
    assert revision_of(folder) == revision_of(folder / "kept") == revision
    (folder / "code.py").write_text("two")
    assert revision_of(folder) == revision_of(folder / "kept") == f"{revision}+"
    (folder / "code.py").write_text("one")
    (folder / "kept" / "results.json").write_text("two")
    # Files that may differ are left out.
    assert revision_of(folder, ("kept",)) == revision
    assert revision_of(folder) == f"{revision}+"
    assert revision_of(folder / "none") == revision_of(folder.parent) == ""


MODULE = Program(FUNCTION, "module:function")
RECORD = record_of(
    job_of("keras", "tf-amp", batches=(8, 32)),
    samples_of("float32", [0.10, 0.10, 0.10]),
    samples_of("float32 again", [0.10, 0.11, 0.10]),
    samples_of("keras", [0.05, 0.05, 0.05], low=3),
    [Sample("tf-amp", 8, 0, failure="<b>no memory</b>")],
    samples_of("float32", [0.30], batch=32),
)


def test_the_table_has_a_line_for_each_method(capsys):
    print_record(RECORD)
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    assert lines[0] == ["module:function,", "train"]
    assert (
        "8 keras 50 160 2.00 (2.00-2.00) faster 5.0 3 0.0e+00 3 of 9".split() in lines
    )
    assert ["8", "tf-amp", "failed", *"-------"] in lines
    assert "32 float32 300 106.7 - - 5.0 3 - 0 of 9".split() in lines
    assert "timed: calls of the step; medians of 3 rounds." in printed


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (80, "16-bit ops, peak MiB, first step s"),
        (100, "16-bit ops, peak MiB"),
        (200, ""),
    ],
)
def test_a_terminal_shows_whole_names_of_methods(width, left_out, monkeypatch, capsys):
    method = "tf-amp:O2+TUNE=off"
    record = record_of(
        job_of(method), RECORD.samples[:3], samples_of(method, [0.05, 0.06, 0.05])
    )
    for name, value in (("COLUMNS", width), ("FORCE_COLOR", 1), ("TERM", "xterm")):
        monkeypatch.setenv(name, str(value))
    print_record(record)
    printed = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert f" {method} " in printed and "…" not in printed
    assert "speed-up (rounds)" in printed and "verdict" in printed
    (said,) = re.findall("^Not shown: (.*); a wider", printed, re.M) or [""]
    assert said == left_out


def noisy_record(*seconds, target=MODULE):
    job = dataclasses.replace(job_of(), target=target)
    again = samples_of("float32 again", seconds)
    return record_of(job, samples_of("float32", [0.1] * len(seconds)), again)


def last_line(record, capsys):
    print_record(record)
    return capsys.readouterr().out.splitlines()[-1]


def test_where_the_noise_is_large_the_last_line_says_what_to_do_next(capsys):
    record = noisy_record(0.1, 0.52, 0.52)
    assert last_line(record, capsys) == (
        "The noise is up to 420% and hides smaller differences; next: longer "
        "--step-seconds or larger batches, on a machine that does nothing else."
    )
    assert "The noise is up to 420%" in page_of(record)
    script = noisy_record(0.52, 0.52, target=Program(SCRIPT, "/train.py"))
    assert last_line(script, capsys) == (
        "The noise is up to 420% and hides smaller differences; next: more steps in "
        "the script, larger batches or --rounds 3, on a machine that does nothing else."
    )


def test_where_the_noise_is_small_nothing_is_advised(capsys):
    assert last_line(noisy_record(0.1, 0.12), capsys) == "today"
    alone = record_of(job_of(), samples_of("float32", [0.1]))
    assert last_line(alone, capsys) == "today"


def test_the_page_needs_no_network_and_holds_no_foreign_markup():
    image, end = "<img src=x onerror=alert(1)>", "</script><script>alert(1)//"
    job = dataclasses.replace(RECORD.job, target=Program(SCRIPT, f"/{image}.py"))
    failed = Sample("tf-amp", 8, 1, failure=end)
    record = dataclasses.replace(RECORD, job=job).with_sample(failed)
    page = page_of(record, "tf-amp bench <b>")
    assert "<code>tf-amp bench &lt;b&gt;</code>" in page
    assert image not in page and end not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "&lt;b&gt;no memory" in page and "<b>no memory" not in page
    assert "2.00\N{NO-BREAK SPACE}(2.00\N{NON-BREAKING HYPHEN}2.00)" in page
    assert '"name": "float32 again"' in page
    assert "<h2>Speed-up over float32</h2>" in page
    assert "At batch size 8: keras makes the steps of" in page
    assert "<script src=" not in page and '<link rel="stylesheet"' not in page


SCRIPT_JOB = dataclasses.replace(
    job_of("keras", "tf-amp", batches=(None,)), target=Program(SCRIPT, "/train.py")
)
OF_SCRIPT = record_of(
    SCRIPT_JOB,
    samples_of("float32", [0.10, 0.10, 0.10], batch=None),
    samples_of("float32 again", [0.10, 0.11, 0.10], batch=None),
    samples_of("keras", [0.10, 0.10, 0.10], batch=None, low=0),
    samples_of("tf-amp", [0.05, 0.04, 0.05], batch=None, low=3),
)


def test_bars_have_their_values_and_what_did_nothing_is_hatched():
    keras, tf_amp = bars_of(OF_SCRIPT)[1:]
    assert (keras.texts, tf_amp.texts) == (["1.00"], ["2.00"])
    assert tf_amp.lengths == ([0.0], [0.5])
    shown = json.loads(
        re.search(r"const FIGURES = (.*);\n", page_of(OF_SCRIPT))[1].split(";\n")[0]
    )
    ((data, _),) = (figure.values() for figure in shown.values())
    hatches = [(each["name"], each["marker"]["pattern"]["shape"]) for each in data]
    assert hatches == [("float32 again", [""]), ("keras", ["/"]), ("tf-amp", [""])]
    assert [each["text"] for each in data] == [["1.00"], ["1.00"], ["2.00"]]


def test_without_batch_sizes_there_is_no_word_of_them(capsys):
    print_record(OF_SCRIPT)
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == [
        *("method", "step", "ms")
    ]
    page = re.sub(r"<script.*?</script>", "", page_of(OF_SCRIPT), flags=re.S)
    assert "batch" not in page and "items/s" not in page and "as it is" not in page
    assert "Hatched are no-ops" in page
    assert "Tf-amp" not in page and "train.py 2.00 times as fast" in page
    with_sizes = page_of(RECORD)
    assert "batch size" in with_sizes and "Hatched" not in with_sizes
    # Bars of several sizes have a legend; those of one have their methods below them.
    assert [bars.places for bars in bars_of(RECORD)] == [("8",), ("8",)]
    one = dataclasses.replace(RECORD, job=job_of("keras"))
    assert [bars.places for bars in bars_of(one)] == [("float32 again",), ("keras",)]


NOISE = samples_of("float32 again", [0.106, 0.106, 0.100])


@pytest.mark.parametrize(
    ("seconds", "low", "answer"),
    [
        (
            [0.050, 0.052, 0.051],
            3,
            "tf-amp makes the steps of module:function 1.96 times as fast (1.92 to "
            "2.00).",
        ),
        (
            [0.150, 0.150, 0.160],
            3,
            "tf-amp makes the steps of module:function 0.67 times as fast (0.62 to "
            "0.67).",
        ),
        (
            [0.098, 0.094, 0.102],
            3,
            "No difference was measured: 1.02 times as fast (0.98 to 1.06) is within "
            "the noise of 6%.",
        ),
        (
            [0.080, 0.080, 0.110],
            3,
            "No difference is certain: 1.25 times as fast (0.91 to 1.25), so that "
            "rounds disagree; more --rounds may decide.",
        ),
        (
            [0.080, 0.080, 0.080],
            0,
            "tf-amp changes nothing in module:function: the graph of float32 ran, and "
            "1.25 times as fast (1.25 to 1.25) is noise.",
        ),
        (
            [0.050],
            3,
            "Too few rounds to tell a gain from noise: tf-amp 2.00 times as fast (2.00 "
            "to 2.00), in 1 round; --rounds 3 is enough.",
        ),
    ],
    ids=["faster", "slower", "within noise", "rounds disagree", "no-op", "too few"],
)
def test_the_last_line_answers_whether_it_is_worth_it(seconds, low, answer, capsys):
    record = record_of(
        job_of("tf-amp"), FLOAT32, NOISE, samples_of("tf-amp", seconds, low=low)
    )
    assert last_line(record, capsys) == f"At batch size 8: {answer}"
    assert answer in page_of(record)


def test_of_several_methods_the_fastest_is_named_if_any_is_faster(capsys):
    slow = samples_of("keras", [0.10, 0.10, 0.09], low=1)
    record = record_of(job_of("keras", "tf-amp"), FLOAT32, NOISE, slow)
    failed = record.with_sample(Sample("tf-amp", 8, 0, failure="exit status 1"))
    same = samples_of("tf-amp", [0.1, 0.1, 0.1], low=1)
    fast = samples_of("tf-amp", [0.05, 0.05, 0.05], low=1)
    said = [
        last_line(dataclasses.replace(record, samples=(*record.samples, *more)), capsys)
        for more in (same, fast)
    ]
    assert said[0].endswith("No method is faster beyond the noise of 6%.")
    assert said[1].endswith("fast (2.00 to 2.00), the fastest of all methods.")
    assert "tf-amp failed" not in last_line(failed, capsys)
    alone = record_of(job_of("tf-amp"), FLOAT32, failed.samples[-1:])
    assert last_line(alone, capsys).endswith(
        "tf-amp failed, so that there is no answer."
    )
    assert [*answers(record_of(job_of(), FLOAT32))] == []


def test_the_chart_is_a_png():
    for record in (RECORD, OF_SCRIPT):
        assert png_of(record).startswith(b"\x89PNG")
