"""The campaigns of `make test-long` write down what they come to."""

import re

from tests import campaign
from tests.processes import ROOT


def test_a_result_takes_the_place_of_the_last_one_of_its_command() -> None:
    text = "| command | result |\n"
    for cells in (("`a`", "1"), ("`a 9`", "2"), ("`a`", "3")):
        text = campaign.with_row(text, cells)
    assert text == "| command | result |\n| `a` | 3 |\n| `a 9` | 2 |\n"


def test_each_campaign_of_make_test_long_has_its_row() -> None:
    lines = re.findall(
        r"python -m (tests\S+) (.*--note)", (ROOT / "Makefile").read_text()
    )
    assert lines
    text = campaign.FILE.read_text()
    for module, arguments in lines:
        begin = f"| {campaign.command_of(module, arguments.split())} | 0-"
        assert begin in text, f"make test-long was never run with {begin}"
