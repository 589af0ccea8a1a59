"""A report opens in a real browser: charts appear, a click tells the reason."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time

import keras
import pytest
import tensorflow as tf

import tf_amp
from keras_callbacks import GradientHealthMonitor, PrecisionReport
from tests.grappler_pass.planning.test_layers import plan_of, row
from tests.keras_programs import fit, half, telling_model
from tf_amp.tools.job_page import JobRecord, html_from_record, record_from_path

playwright = pytest.importorskip("playwright.sync_api")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
# Until a page of ten thousand operations is there; a fraction of it on a quiet machine.
SECONDS = 5.0
TREE = "[id^=chart-][id$=where-the-time-goes]"
# Of the sections of a run, what plotly draws there.
CHARTS = {
    "From float32 to the plan": ".bars .point",
    "Loss scale of": ".scatterlayer .trace",
    "Gradients of": ".heatmaplayer image",
    "Numbers of chain": ".scatterlayer .points path",
    "Predicted and measured times of chain": ".scatterlayer .points path",
}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page that is closed to the network, and fails the test for any error."""
    context = browser.new_context(offline=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: line.type == "error" and problems.append(line.text))
    page.on("request", lambda r: r.url[:4] == "http" and problems.append(r.url))
    yield page
    context.close()
    assert not problems


def large_plan(count):
    layers = max(count // 10, 1)
    plan = plan_of(
        *(
            row(
                f"model/layer_{n % layers}/op_{n}",
                seconds=1e-3,
                low=5e-4,
                cast=1e-5,
                is_low=n % 3 == 0,
            )
            for n in range(count)
        )
    )
    return dataclasses.replace(
        plan, seconds_before=count * 1e-3, seconds_after=count * 8e-4
    )


def open_report(page, tmp_path, plan):
    path = tmp_path / "report.html"
    path.write_text(html_from_record(JobRecord("job", (plan,))), encoding="utf-8")
    begin = time.perf_counter()
    page.goto(path.as_uri())
    seconds = time.perf_counter() - begin
    page.wait_for_selector(f"{TREE} .slice")
    return seconds, time.perf_counter() - begin


def test_a_click_on_an_operation_tells_its_reason_and_a_pattern_to_copy(page, tmp_path):
    open_report(page, tmp_path, large_plan(2))
    page.locator(f"{TREE} .slice", has_text="op_0").last.click()
    details = page.locator(".details")
    details.wait_for(state="visible")
    text = details.inner_text()
    assert "16 bits are faster here" in text and "model/layer_0/op_0" in text
    assert "^model/layer_0/op_0$" in text and "^model/layer_0/" in text

    button = details.locator("button").first
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button.click()
    page.get_by_role("button", name="copied").wait_for()
    pattern = "^model/layer_0/op_0$"
    assert page.evaluate("navigator.clipboard.readText()") == pattern
    page.get_by_role("button", name="copied").wait_for(state="detached")
    # As on a page that came over plain HTTP.
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    button.click()
    page.get_by_role("button", name="selected").wait_for()
    assert page.evaluate("String(getSelection())") == pattern


def test_charts_appear_once_scrolled_to_and_clicks_enter_and_leave_a_scope(
    page, tmp_path
):
    open_report(page, tmp_path, large_plan(20))
    charts = page.locator(".chart")
    assert charts.count() == 2
    for number in range(charts.count()):
        charts.nth(number).scroll_into_view_if_needed()
        charts.nth(number).locator(".main-svg").first.wait_for(state="visible")
    slices = page.locator(f"{TREE} .slice")

    def layer(number):
        return slices.filter(has=page.get_by_text(f"layer_{number}", exact=True))

    assert layer(0).count() == layer(1).count() == 1
    layer(1).click()
    layer(0).wait_for(state="detached")
    layer(1).click()
    layer(0).wait_for()


def traced(opt_level):
    tf_amp.enable(device_profile="cpu-avx512-bf16", opt_level=opt_level)

    @tf.function
    def chain(x):
        return tf.exp(tf.nn.relu(x @ x) @ x)

    return chain.get_concrete_function(tf.TensorSpec((256, 256)))


@pytest.fixture
def folder(tmp_path, disabled_afterwards):
    """What a run of `fit`, the verification and the times of a function have left."""
    scale = tf_amp.DynamicLossScale(initial=2.0**24, growth_interval=2)
    callbacks = (half(loss_scale=scale), PrecisionReport(tmp_path))
    fit(telling_model(keras), *callbacks, GradientHealthMonitor(), epochs=3)
    function = traced("O2")
    texts = {
        "numbers.json": tf_amp.verify(function, tf.ones((256, 256)) / 256).to_json(),
        "times.json": tf_amp.explain(function, measure=True).to_json(),
        "steps.json": json.dumps(
            {"graph": "chain", "is_faster": True, "ratio": 1.25, "pairs": 9}
        ),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_sections_of_a_run_open_with_their_charts(page, folder):
    path = folder / "report.html"
    other = JobRecord("earlier", (tf_amp.explain(traced("O0")),))
    html = html_from_record(record_from_path(folder), other)
    path.write_text(html, encoding="utf-8")
    page.goto(path.as_uri())

    def section(title):
        heading = page.locator(":is(h2, h3)", has_text=title).first
        found = heading.locator("xpath=..")
        found.scroll_into_view_if_needed()
        return found

    for title, traces in CHARTS.items():
        chart = section(title).locator(".chart")
        chart.locator(".main-svg").first.wait_for(state="visible")
        assert chart.locator(traces).count() > 0, title
    assert "1.25x" in page.locator("main").inner_text()
    assert "steps skipped" in section("Steps of the job").inner_text()
    assert "float32 to bfloat16" in section("Beside earlier").inner_text()
    numbers = section("Numbers of chain").locator("tbody tr")
    assert numbers.count() > 0
    assert page.get_by_text("Not recorded").count() == 0


def test_a_narrow_page_is_no_wider_than_its_window(page, tmp_path):
    long = "a_layer_with_a_name_that_is_longer_than_any_telephone_is_wide" * 2
    plan = plan_of(row(f"{long}/MatMul", seconds=1e-3, low=5e-4, is_low=True))
    plan = dataclasses.replace(plan, graph=long, seconds_before=1e-3)
    page.set_viewport_size({"width": 375, "height": 800})
    open_report(page, tmp_path, plan)
    assert page.evaluate("document.documentElement.scrollWidth") == 375


def test_labels_are_large_enough_to_read_or_hidden(page, tmp_path):
    open_report(page, tmp_path, large_plan(400))
    labels = page.locator(f"{TREE} .slicetext")
    sizes = labels.evaluate_all(
        "all => all.filter((each) => getComputedStyle(each).display !== 'none')"
        ".map((each) => parseFloat(getComputedStyle(each).fontSize))"
    )
    assert sizes and min(sizes) >= 9.0
    assert len(sizes) < labels.count()


def test_charts_follow_the_scheme_and_all_are_printed_light(page, tmp_path):
    page.emulate_media(color_scheme="dark")
    open_report(page, tmp_path, large_plan(20))
    color = "getComputedStyle(document.querySelector('.ytick text')).fill"
    page.locator(".chart").last.scroll_into_view_if_needed()
    page.wait_for_selector(".ytick text")
    dark = page.evaluate(color)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"{color} !== {dark!r}")
    light = page.evaluate(color)

    page.emulate_media(color_scheme="dark")
    page.reload()
    page.wait_for_selector(f"{TREE} .slice")
    page.evaluate(
        "addEventListener('afterprint', () => 0);"
        f"addEventListener('beforeprint', () => {{ window.printed = {color}; }})"
    )
    page.pdf()
    assert page.evaluate("window.printed") == light


def test_a_model_of_ten_thousand_operations_opens_soon(page, tmp_path):
    read, drawn = open_report(page, tmp_path, large_plan(10_000))
    assert (tmp_path / "report.html").stat().st_size < 6e6
    assert read < SECONDS and drawn < 3 * SECONDS
    print(f"opened in {read:.2f} s, drawn in {drawn:.2f} s")
