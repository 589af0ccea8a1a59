"""The pages of docs/ name all that is public, and ask nothing of the network."""

from __future__ import annotations

import importlib
import pathlib
import shutil
import sys

import pytest

from tests.processes import ROOT, run
from tests.tf_amp.tools.report.test_browser import BROWSER

PACKAGES = ("tf_amp", "tf_amp.block_sparse", "tf_amp.placement", "keras_callbacks")

pytest.importorskip("mkdocs", reason="other TensorFlows are tried without docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    run(command, env={"NO_MKDOCS_2_WARNING": "1"}, cwd=ROOT).lines()
    return folder


def _own_name(package: object, name: str) -> str:
    return getattr(getattr(package, name), "__name__", name)


@pytest.mark.parametrize("name", PACKAGES)
def test_each_public_name_has_its_entry(name: str, site: pathlib.Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    package = importlib.import_module(name)
    # Under its own name: `init` is `enable` too.
    own = {each for each in package.__all__ if each == _own_name(package, each)}
    assert own
    assert not {each for each in own if f'id="{name}.{each}"' not in page}


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("name", ["index", "api"])
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
