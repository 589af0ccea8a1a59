"""What can be caught, by its name; what messages end with, and what to do then."""

from __future__ import annotations

import builtins
import inspect
import re
from itertools import chain

import tf_amp
from tests.processes import ROOT
from tf_amp.message_codes import Code

ROW = re.compile(r"^\| `(AMP\d+)` \| (.+) \| (.+) \|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_all_errors_have_one_base_and_end_in_error():
    found = [getattr(tf_amp, name) for name in tf_amp.__all__]
    errors = [e for e in found if isinstance(e, type) and issubclass(e, Exception)]
    assert len(errors) == 15
    for error in errors:
        assert issubclass(error, tf_amp.AmpError)
        assert error.__name__.endswith("Error")


def test_errors_that_public_docstrings_name_are_public():
    public = [getattr(tf_amp, name) for name in tf_amp.__all__]
    methods = [vars(each).values() for each in public if isinstance(each, type)]
    texts = [inspect.getdoc(each) or "" for each in chain(public, *methods)]
    named = set(re.findall(r"^\s*(\w+Error)\b.*:", "\n".join(texts), re.MULTILINE))
    ours = {name for name in named if not hasattr(builtins, name)}
    assert len(ours) >= 10
    assert ours <= {*tf_amp.__all__}


def test_each_code_has_one_row_in_the_page_and_each_row_is_of_a_code() -> None:
    listed = [code for code, _, _ in ROW.findall(PAGE)]
    assert listed == sorted(code.value for code in Code)


def test_no_row_has_nothing_to_do() -> None:
    assert not [code for code, _, todo in ROW.findall(PAGE) if "nothing;" in todo]


def test_each_code_is_said_somewhere() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for package in ("tf_amp", "keras_callbacks")
        for path in (ROOT / package).rglob("*.py")
    ]
    unused = [
        code.name
        for code in Code
        if not any(re.search(rf"\bCode\.{code.name}\b", text) for text in sources)
    ]
    assert not unused
