"""A plan's page holds all it needs, and shows names as they are."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
import sys

import pytest

import tf_amp
from grappler_pass.errors import MissingExtraError
from grappler_pass.planning.plan import Cause, Fusion, Reason
from tests.contrast import contrast_of
from tests.grappler_pass.planning.test_layers import plan_of, row
from tf_amp.report import page
from tf_amp.report.plan_page import section_of
from tf_amp.report.plan_verdict import Observed

LOW = row("dense/MatMul", seconds=4e-3, low=1e-3, cast=5e-4, is_low=True)
KEPT = row("dense/Add", seconds=1e-3)


def sections_of(plan):
    """Return the sections of a plan by their titles, those within others included."""
    whole = section_of(plan)
    beside = [each for column in whole.beside for each in column]
    return {each.title: each for each in (whole, *beside, *whole.parts)}


def seen_in(html):
    return re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S)


def test_names_on_a_page_are_without_the_scopes_of_inlined_calls():
    scope = "StatefulPartitionedCall/PartitionedCall_1/model/dense"
    given = row(f"{scope}/MatMul", seconds=1e-3)
    why = Reason(Cause.DENY_TAINT, f"{scope}/Sum")
    plan = plan_of(dataclasses.replace(given, reason=why))
    shown = seen_in(plan.to_html())
    assert "model/dense/MatMul" in shown and ": model/dense/Sum" in shown
    assert "PartitionedCall" not in shown
    (tree,) = (each.tree for each in sections_of(plan).values() if each.tree)
    assert tree.reasons == (f"{why.cause.value}: model/dense/Sum",)
    # Patterns that keep an operation in float32 have its name in the graph.
    assert tree.prefixes == ("StatefulPartitionedCall/PartitionedCall_1/",)


def test_a_page_loads_nothing_from_elsewhere():
    html = plan_of(LOW, KEPT).to_html()
    assert html.startswith("<!doctype html>") and len(html) < 6e6
    own = re.sub(r"<script[^>]*>.*?</script>", "", html, flags=re.S)
    assert not re.search(r"(src|href)=.?(https?:)?//|@import|url\(", own)


def test_a_page_says_what_share_of_the_time_is_in_16_bits():
    html = plan_of(LOW, KEPT).to_html()
    # Of the product 1.5 ms with its cast, of the sum 1 ms.
    assert "<b>60%</b><span>of the time in bfloat16</span>" in seen_in(html)
    slower = Observed(ratio=0.9, is_applied=False)
    titles = [card.title for card in section_of(plan_of(LOW, KEPT), slower).cards]
    assert "of its plan's time in bfloat16" in titles


def test_names_are_no_markup():
    evil = "</script><script>alert(1)//"
    html = plan_of(row(f"{evil}/MatMul", seconds=1e-3)).to_html()
    assert evil not in html and "&lt;/script&gt;" in html


def test_fusions_stand_with_what_they_save_and_why():
    import dataclasses

    done = Fusion("layer_norms", "norm/add", 2e-3, Reason(Cause.FUSED, "one kernel"))
    left = Fusion("channel_scales", "conv", 0.0, Reason(Cause.FUSION_COST))
    plan = dataclasses.replace(plan_of(LOW), fusions=(done,), declined_fusions=(left,))
    assert sections_of(plan)["Fusions"].table.rows == (
        ("layer_norms", "norm/add", 2.0, str(done.reason)),
        ("channel_scales", "conv", "-", str(left.reason)),
    )
    assert str(plan).splitlines()[2:4] == [
        f"layer_norms         1         2  {done.reason}",
        f"channel_scales      1         -  {left.reason}",
    ]


def test_the_waterfall_leads_from_float32_to_the_plan():
    import dataclasses

    plan = dataclasses.replace(
        plan_of(LOW, KEPT),
        seconds_before=7e-3,
        seconds_after=2.5e-3,
        fusions=(
            Fusion("channel_scales", "dense/MatMul", 2e-3, Reason(Cause.FUSED)),
            # Too little to be seen.
            Fusion("layer_norms", "norm/mul", 1e-9, Reason(Cause.FUSED)),
        ),
    )
    figure = sections_of(plan)["From float32 to the plan"].figure
    (bar,) = figure.data
    heights = dict(zip(bar.y, bar.x, strict=True))
    assert heights == {
        "float32": 7.0,
        "MatMul": -3.0,
        "fusion channel_scales": -2.0,
        "casts": 0.5,
        "plan": 2.5,
    }
    ends = [base + height for base, height in zip(bar.base, bar.x, strict=True)]
    assert ends[-2] == ends[-1] == 2.5
    # Each bar has its value beside its name.
    assert figure.layout.yaxis.ticktext[1] == "MatMul  -3 ms"
    assert figure.layout.yaxis.ticktext[-2:] == ("casts  +0.5 ms", "plan  2.5 ms")


def test_what_is_kept_is_summed_by_reason():
    plan = plan_of(LOW, row("a/Add", seconds=1e-3), row("b/Add", seconds=2e-3))
    for title, reason in (
        ("What keeps the rest in float32", "gains nothing in 16 bits"),
        (
            "What stays float32, and why",
            "it could be in 16 bits, but float32 is at least as fast",
        ),
    ):
        ((label, (bar,)),) = sections_of(plan)[title].bars.groups
        assert label.startswith(reason)
        # Of 4.5 ms under the plan.
        assert (bar.total, bar.note) == (3.0, ", 67%")


def test_bars_of_layers_show_float32_beside_the_types_of_the_plan():
    bars = sections_of(plan_of(LOW, KEPT))["Float32 against the plan, by layer"].bars
    ((name, (float32, planned)),) = bars.groups
    assert (name, float32.pieces) == ("dense", (("float32", 5.0),))
    assert planned.pieces == (("low", 1.0), ("float32", 1.0), ("casts", 0.5))
    assert set(bars.kinds) == {"low", "float32", "casts"} and bars.longest == 5.0


@pytest.mark.parametrize(
    ("layers", "shown"),
    [
        (["net/dense", "net/dense_1", "net/head"],) * 2,
        # Small layers of similar names are together, where there are many.
        (
            [f"net/conv{a}_block{b}_conv" for a in (1, 2) for b in range(9)],
            ["net/conv1_…", "net/conv2_…"],
        ),
        # A layer is not divided into the scopes in it, but a block without own is.
        (
            ["net/dense", "net/dense/bias", "net/block/a", "net/block/b"],
            ["net/dense", "net/block/a", "net/block/b"],
        ),
        (
            ["tf_amp_if_finite/then/_4/tf_amp_if_finite/adam"],
            ["tf-amp: if finite/adam"],
        ),
    ],
)
def test_layers_are_grouped_by_what_their_names_begin_with(layers, shown):
    rows = (row(f"{name}/MatMul", seconds=1e-3) for name in layers)
    bars = sections_of(plan_of(*rows))["Time in float32, by layer"].bars
    assert sorted(label for label, _ in bars.groups) == sorted(shown)


def test_without_layers_bars_are_of_operations_and_the_tail_is_one_bar():
    bars = sections_of(plan_of(row("a"), row("b")))[
        "Time in float32, by operation"
    ].bars
    assert [label for label, _ in bars.groups] == ["MatMul"]
    many = plan_of(*(row(f"layer{n}/MatMul", seconds=n * 1e-3) for n in range(1, 21)))
    bars = sections_of(many)["Time in float32, by layer"].bars
    assert bars.groups[-1][0] == "13 others" and len(bars.groups) == 8
    assert sum(bar.total for _, (bar,) in bars.groups) == pytest.approx(210.0)


def test_a_plan_of_nothing_has_a_page_without_charts():
    html = plan_of().to_html()
    assert "<script" not in html and "No operation has a predicted time." in html
    assert "no operation in it computes with floating-point numbers" in html


def test_a_page_says_when_where_and_with_what_it_was_written():
    html = seen_in(plan_of(LOW).to_html())
    assert re.search(
        r"<span>written \d{4}-\d\d-\d\d \d\d:\d\d UTC on [^<]+</span>", html
    )
    assert f"tf-amp {tf_amp.__version__}" in html and "Python 3." in html


def test_the_contents_lead_to_sections_that_are_there_once():
    html = seen_in(plan_of(LOW, KEPT).to_html())
    (contents,) = re.findall(r"<nav.*?</nav>", html, flags=re.S)
    links = re.findall(r'href="#([^"]+)"', contents)
    assert len(links) == len(set(links)) > 4
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids)) and set(links) <= set(ids)


def test_columns_of_numbers_are_those_of_nothing_else_but_dashes():
    rows = (("1,322", "8 of 9", 1.5, "2e-03"), ("-", "7", "-", "nan"))
    table = page.PageTable(("rate", "ops", "ms", "error"), rows)
    assert list(map(table.has_numbers, range(4))) == [True, False, True, True]


def test_headings_come_in_order_and_text_in_backticks_is_code():
    import dataclasses

    plan = dataclasses.replace(plan_of(LOW), graph="training step of `fit`")
    html = seen_in(plan.to_html())
    assert "<h2>Training step of <code>fit</code></h2>" in html
    levels = [int(level) for level in re.findall(r"<h(\d)>", html)]
    pairs = itertools.pairwise(levels)
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairs)


def test_text_is_legible_in_both_schemes_and_on_the_colors_of_charts():
    folder = pathlib.Path(page.__file__).parent
    css = (folder / "page.css").read_text().replace("white", "#ffffff")
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6})", block))
        for block in re.findall(r":root\S* \{(.*?)\}", css, flags=re.S)
    )
    assert light.keys() == dark.keys()
    for scheme in (light, dark):
        for text in ("text", "dim", "link"):
            for ground in ("page", "soft"):
                assert contrast_of(scheme[text], scheme[ground]) >= 4.5, (text, ground)
    (ink,) = re.findall(r'ON_COLOR = "(#\w+)"', (folder / "page.js").read_text())
    for ground in (page.FLOAT32_COLOR, page.LOW_COLOR):
        assert contrast_of(ink, ground) >= 4.5


@pytest.mark.parametrize("name", ["jinja2", "plotly"])
def test_a_missing_package_is_named_with_what_installs_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    page.check_extra.cache_clear()
    with pytest.raises(MissingExtraError, match=rf"{name} .*'\.\[report\]'"):
        plan_of(LOW).to_html()
    page.check_extra.cache_clear()
