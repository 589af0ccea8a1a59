"""The table, the page and the chart."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.tf_amp.tools.bench.bench_samples import job_of, record_of, samples_of
from tf_amp.tools.bench.job import FUNCTION, SCRIPT, Target
from tf_amp.tools.bench.journal import Sample
from tf_amp.tools.bench.record import Record
from tf_amp.tools.bench.rendering import page_of, png_of, print_record

MODULE = Target(FUNCTION, "module:function")
RECORD = record_of(
    job_of("keras", "tf-amp", batches=(8, 32)),
    samples_of("float32", [0.10, 0.10, 0.10]),
    samples_of("float32 again", [0.10, 0.11, 0.10]),
    samples_of("keras", [0.05, 0.05, 0.05], low=3),
    [Sample("tf-amp", 8, 0, failure="<b>no memory</b>")],
    samples_of("float32", [0.30], batch=32),
)


def test_the_table_has_a_line_for_each_method(capsys) -> None:
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
def test_a_terminal_shows_whole_names_of_methods(
    width: int, left_out: str, monkeypatch, capsys
) -> None:
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


def noisy_record(*seconds: float, target: Target = MODULE) -> Record:
    job = dataclasses.replace(job_of(), target=target)
    again = samples_of("float32 again", seconds)
    return record_of(job, samples_of("float32", [0.1] * len(seconds)), again)


def last_line(record: Record, capsys: pytest.CaptureFixture[str]) -> str:
    print_record(record)
    return capsys.readouterr().out.splitlines()[-1]


def test_where_the_noise_is_large_the_last_line_says_what_to_do_next(capsys) -> None:
    record = noisy_record(0.1, 0.52, 0.1)
    assert last_line(record, capsys) == (
        "The noise is up to 420% and hides smaller differences; next: longer "
        "--step-seconds or larger batches, on a machine that does nothing else."
    )
    assert "The noise is up to 420%" in page_of(record)
    script = noisy_record(0.1, 0.52, target=Target(SCRIPT, "/train.py"))
    assert last_line(script, capsys) == (
        "The noise is up to 420% and hides smaller differences; next: more steps in "
        "the script, larger batches or --rounds 3, on a machine that does nothing else."
    )


def test_where_the_noise_is_small_nothing_is_advised(capsys) -> None:
    assert last_line(noisy_record(0.1, 0.12), capsys) == "today"
    alone = record_of(job_of(), samples_of("float32", [0.1]))
    assert last_line(alone, capsys) == "today"


def test_the_page_needs_no_network_and_holds_no_foreign_markup() -> None:
    page = page_of(RECORD)
    assert "&lt;b&gt;no memory" in page and "<b>no memory" not in page
    assert "2.00 (2.00-2.00)" in page and '"name": "float32 again"' in page
    assert "<script src=" not in page and '<link rel="stylesheet"' not in page


def test_names_and_failures_are_text_on_the_page() -> None:
    image, end = "<img src=x onerror=alert(1)>", "</script><script>alert(1)//"
    job = dataclasses.replace(job_of("keras"), target=Target(SCRIPT, f"/{image}.py"))
    failed = [Sample("keras", 8, 0, failure=text) for text in (image, end)]
    page = page_of(record_of(job, samples_of("float32", [0.1]), failed))
    assert image not in page and end not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_the_chart_is_a_png() -> None:
    assert png_of(RECORD).startswith(b"\x89PNG")
