"""Docs, API reference and messages use TensorFlow's words, none that only we know."""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.processes import ROOT

# What is not said, and what is said for it.
WORDS = {
    r"beside types": "fusions",
    r"in doubt|beyond doubt|doubts?|stakes?": "close call, uncertain",
    r"votes?|voted|tally|tallies": "finite flags, finite-step counters",
    r"towers?": "replica losses",
    r"strangers?": "variables of other jobs",
    r"grades?": "accuracy class",
    r"harm|harms|harmed": "sensitivity, accuracy",
    r"leaks?": "exposed",
    r"rests": "unchanged",
    r"unlike devices": "heterogeneous devices",
    r"in step": "synchronous",
    r"variables? of the environment": "environment variable",
    r"hangs? on": "depends on",
    r"hands? (?:\w+ )?on|handed": "passes",
    r"go(?:es)? by": "uses",
    r"at hand": "available",
    r"made[- ]up": "synthetic",
    r"for people": "human-readable",
    r"anew": "again",
    r"somebody|nobody": "the caller, no reader",
    r"as it is|(?:stay|left|sees?|used|applied|work) as they are": "unchanged",
    r"behind": "after, downstream",
}
# Where such a word is the name of something, or has another sense.
ALLOWED = {
    ("docs/decisions.md", "doubt"): "a reason's name, which plan.filter takes",
    ("docs/kernels.md", "leak"): "of memory",
    ("docs/loss_scaling.md", "rests"): "a method's name",
    ("tf_amp/config/loss_scales/protocol.py", "rests"): "the same",
}
PATTERN = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
NAMES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = (*(ROOT / name for name in NAMES), *(ROOT / "docs").rglob("*.md"))
PACKAGES = ("tf_amp", "grappler_pass", "keras_callbacks")
# Those of the API reference.
PUBLIC = ("tf_amp", "keras_callbacks", "tf_amp.block_sparse", "tf_amp.placement")
SOURCES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def messages_in(path: pathlib.Path) -> Iterator[str]:
    """Return the texts in a module, but for docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in alone:
            yield node.value


def members_of(value: object) -> Iterator[object]:
    """Yield a public name's value, and of a class its public members."""
    yield value
    if inspect.isclass(value):
        for each in value.__mro__:
            if each.__module__.partition(".")[0] in PACKAGES:
                members = vars(each).items()
                yield from (m for name, m in members if not name.startswith("_"))


def docstrings_of(package: str) -> Iterator[tuple[str, str]]:
    """Yield what the API reference says of each public name of a package."""
    module = importlib.import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue
        for member in members_of(value):
            yield f"{package}.{name}", inspect.getdoc(member) or ""


def found_in(path: pathlib.Path, texts: list[str]) -> list[str]:
    name = str(path.relative_to(ROOT))
    return [
        f"{name}: {word!r} in {' '.join(text.split())[:100]!r}"
        for text in texts
        for word in PATTERN.findall(" ".join(text.split()))
        if (name, word.lower()) not in ALLOWED
    ]


def test_pages_say_no_word_that_has_a_better_one() -> None:
    found = [
        each
        for page in PAGES
        for each in found_in(page, page.read_text(encoding="utf-8").split("\n\n"))
    ]
    assert not found, "\n".join(found)


def test_messages_say_no_word_that_has_a_better_one() -> None:
    found = [each for path in SOURCES for each in found_in(path, [*messages_in(path)])]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PUBLIC)
def test_the_api_reference_says_no_word_that_has_a_better_one(package: str) -> None:
    docs = list(docstrings_of(package))
    assert len({name for name, text in docs if text}) > 1
    found = [
        f"{name}: {word!r} in {text[:100]!r}"
        for name, text in docs
        for word in PATTERN.findall(" ".join(text.split()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("name", "word"), ALLOWED)
def test_what_is_allowed_is_there(name: str, word: str) -> None:
    assert re.search(rf"\b{word}\b", (ROOT / name).read_text(encoding="utf-8"))
