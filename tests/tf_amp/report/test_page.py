"""A plan's page holds all it needs, and shows names as they are."""

from __future__ import annotations

import re
import sys

import pytest

from grappler_pass.errors import MissingExtraError
from grappler_pass.planning.plan import Cause, Fusion, Reason
from tests.grappler_pass.planning.test_layers import plan_of, row
from tf_amp.report import page
from tf_amp.report.plans import sections_of

LOW = row("dense/MatMul", seconds=4e-3, low=1e-3, cast=5e-4, is_low=True)


def figures_of(plan):
    return {section.title: section.figure for section in sections_of(plan)}


def test_a_page_loads_nothing_from_elsewhere():
    html = plan_of(LOW, row("dense/Add", seconds=1e-3)).to_html()
    assert html.startswith("<!doctype html>") and len(html) < 6e6
    own = re.sub(r"<script[^>]*>.*?</script>", "", html, flags=re.S)
    assert not re.search(r"(src|href)=.?(https?:)?//|@import|url\(", own)


def test_a_page_says_what_share_of_the_time_is_in_16_bits():
    html = plan_of(LOW, row("dense/Add", seconds=1e-3)).to_html()
    # Of the product 1.5 ms with its cast, of the sum 1 ms.
    assert "60%" in re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S)


def test_names_are_no_markup():
    evil = "</script><script>alert(1)//"
    html = plan_of(row(f"{evil}/MatMul", seconds=1e-3)).to_html()
    assert evil not in html and "&lt;/script&gt;" in html


def test_rewrites_beside_types_stand_with_what_they_save_and_why():
    import dataclasses

    done = Fusion("layer_norms", "norm/add", 2e-3, Reason(Cause.FUSED, "one kernel"))
    left = Fusion("channel_scales", "conv", 0.0, Reason(Cause.FUSION_COST))
    plan = dataclasses.replace(plan_of(LOW), fusions=(done,), declined_fusions=(left,))
    (table,) = [
        s.table for s in sections_of(plan) if s.title == "Rewrites beside types"
    ]
    assert table.rows == (
        ("layer_norms", "norm/add", 2.0, str(done.reason)),
        ("channel_scales", "conv", "-", str(left.reason)),
    )
    assert str(plan).splitlines()[-2:] == [
        f"layer_norms     1      2.0000    {done.reason}",
        f"channel_scales  1      -         {left.reason}",
    ]


def test_the_waterfall_leads_from_float32_to_the_plan():
    import dataclasses

    plan = dataclasses.replace(
        plan_of(LOW, row("dense/Add", seconds=1e-3)),
        seconds_before=7e-3,
        seconds_after=2.5e-3,
        fusions=(Fusion("channel_scales", "dense/MatMul", 2e-3, Reason(Cause.FUSED)),),
    )
    (bar,) = figures_of(plan)["From float32 to the plan"].data
    heights = dict(zip(bar.x, bar.y, strict=True))
    assert heights == {
        "float32": 7.0,
        "MatMul": -3.0,
        "rewrite channel_scales": -2.0,
        "casts": 0.5,
        "plan": 2.5,
    }
    ends = [base + height for base, height in zip(bar.base, bar.y, strict=True)]
    assert ends[-2] == ends[-1] == 2.5


def test_what_is_kept_is_summed_by_reason():
    plan = plan_of(LOW, row("a/Add", seconds=1e-3), row("b/Add", seconds=2e-3))
    (bar,) = figures_of(plan)["What stays float32, and why"].data
    assert list(bar.x) == [3.0] and "float32 is at least as fast" in bar.y[0]


def test_a_plan_of_nothing_has_a_page_without_charts():
    html = plan_of().to_html()
    assert "<script" not in html and "0 of 0 float type attributes" in html


@pytest.mark.parametrize("name", ["jinja2", "plotly"])
def test_a_missing_package_is_named_with_what_installs_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    page.check_extra.cache_clear()
    with pytest.raises(MissingExtraError, match=rf"{name} .*tf-amp\[report\]"):
        plan_of(LOW).to_html()
    page.check_extra.cache_clear()
