"""The pages of docs/ name all that is public, and ask nothing of the network."""

from __future__ import annotations

import importlib
import json
import pathlib
import re
import runpy
import shutil
import sys

import pytest

from tests.contrast import contrast_of
from tests.processes import ROOT, run
from tests.tf_amp.tools.report.test_browser import BROWSER
from tf_amp.tools.bench.rendering import bars_of

PACKAGES = ("tf_amp", "tf_amp.block_sparse", "tf_amp.placement", "keras_callbacks")

pytest.importorskip("mkdocs", reason="other TensorFlows are tried without docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("site")
    # As `make docs`: a broken link fails.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    command += ["--site-dir", str(folder)]
    run(command, env={"NO_MKDOCS_2_WARNING": "1"}, cwd=ROOT).lines()
    return folder


def _own_name(package: object, name: str) -> str:
    return getattr(getattr(package, name), "__name__", name)


@pytest.mark.parametrize("name", PACKAGES)
def test_each_public_name_has_its_page(name: str, site: pathlib.Path) -> None:
    package = importlib.import_module(name)
    index = (site / "api.html").read_text(encoding="utf-8")
    for each in package.__all__:
        page = site / "api" / f"{name}.{each}.html"
        if each == _own_name(package, each):
            assert f'id="{name}.{each}"' in page.read_text(encoding="utf-8")
            assert f'href="api/{page.name}"' in index
        else:
            # `init` is `enable` too.
            assert not page.exists() and f"<code>{each}</code>" in index


@pytest.mark.parametrize(
    "term",
    [
        "enable",
        "fine-tune",
        "install",
        "quickstart",
        "loss scale",
        "bench",
        "calibrate",
    ],
)
def test_a_search_finds_a_title(term: str, site: pathlib.Path) -> None:
    found = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    titles = {each["title"].lower() for each in found["docs"]}
    assert [title for title in titles if term in title]


def test_each_picture_of_a_report_or_of_bench_can_be_made_again() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    pages = (ROOT / "docs" / f"{name}.md" for name in ("report", "bench", "evidence"))
    report, bench, evidence = (page.read_text(encoding="utf-8") for page in pages)
    shown = re.findall(
        r"\((\w+|evidence/batches_\w+)\.png\)", report + bench + evidence
    )
    assert {*shown} == made["PICTURES"].keys() | made["BENCHES"].keys()
    # What is said of bench's chart is what its samples come to.
    (said,) = re.findall(r"!\[([^]]*)\]\(evidence/batches_resnet50\.png\)", bench)
    samples = made["BENCHES"]["evidence/batches_resnet50"]
    drawn = bars_of(made["record_from"](samples))
    assert re.findall(r"\d\.\d\d", said) == [
        text for bars in drawn for text in bars.texts
    ]
    assert made["chart"](samples).startswith(b"\x89PNG")


def test_each_tutorial_offers_its_notebook(site: pathlib.Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    pages = [*(site / "tutorials").glob("*.html")]
    assert len(pages) == len([*(ROOT / "docs" / "tutorials").glob("*.md")])
    for page in pages:
        notebook = page.with_suffix(".ipynb")
        nbformat.validate(nbformat.read(notebook, as_version=4))
        assert f'href="{notebook.name}"' in page.read_text(encoding="utf-8")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize(
    "name", ["index", "api", "api/tf_amp.enable", "tutorials/serve"]
)
def test_a_page_asks_nothing_of_the_network(name: str, site: pathlib.Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which(str(BROWSER)), args=["--no-sandbox"]
        )
        page = browser.new_context(offline=True).new_page()
        asked: list[str] = []
        page.on("request", lambda each: asked.append(each.url))
        page.goto((site / f"{name}.html").as_uri(), wait_until="load")
        browser.close()
    assert asked
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]


def test_links_and_the_head_of_a_page_are_legible_in_both_schemes() -> None:
    css = (ROOT / "docs" / "site.css").read_text(encoding="utf-8")
    blocks = re.findall(r'scheme="(\w+)"\] \{(.*?)\}', css, flags=re.S)
    grounds = {"default": "#ffffff", "slate": "#1e2129"}
    assert [scheme for scheme, _ in blocks] == [*grounds]
    for scheme, block in blocks:
        colors = dict(re.findall(r"--md-([\w-]+): (#\w{6});", block))
        assert contrast_of("#ffffff", colors["primary-fg-color"]) >= 4.5
        for name in colors.keys() - {"primary-fg-color"}:
            assert contrast_of(colors[name], grounds[scheme]) >= 4.5, (scheme, name)
