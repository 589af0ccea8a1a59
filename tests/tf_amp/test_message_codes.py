"""Messages end with codes, and a page says of each what to do."""

from __future__ import annotations

import re

from tests.processes import ROOT
from tf_amp.message_codes import Code

ROW = re.compile(r"^\| `(AMP\d+)` \| (.+) \| (.+) \|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


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
