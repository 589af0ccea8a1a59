"""The table, the page and the chart."""

from __future__ import annotations

from tests.tf_amp.tools.bench.bench_samples import job_of, record_of, samples_of
from tf_amp.tools.bench.rendering.chart import png_of
from tf_amp.tools.bench.rendering.page import page_of
from tf_amp.tools.bench.rendering.table import print_record
from tf_amp.tools.bench.samples import Sample

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


def test_the_page_needs_no_network_and_holds_no_foreign_markup() -> None:
    page = page_of(RECORD)
    assert "&lt;b&gt;no memory" in page and "<b>no memory" not in page
    assert "2.00 (2.00-2.00)" in page and '"name": "float32 again"' in page
    assert "<script src=" not in page and '<link rel="stylesheet"' not in page


def test_the_chart_is_a_png() -> None:
    assert png_of(RECORD).startswith(b"\x89PNG")
