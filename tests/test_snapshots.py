"""Every command prints what was reviewed, on the same small inputs."""

from __future__ import annotations

import pytest

from tests.snapshots.masking import masked
from tests.snapshots.printed import LONG, NAMES, path_of, text_of, why_not
from tf_amp.commands import cli


@pytest.mark.parametrize("name", [each for each in NAMES if each not in LONG])
def test_a_command_prints_what_was_reviewed(name: str) -> None:
    """After a change that is meant: `python -m tests.snapshots`."""
    if reason := why_not(name):
        pytest.skip(reason)
    assert text_of(name) == path_of(name).read_text()


def test_every_command_has_a_snapshot_of_what_it_prints_and_of_its_help() -> None:
    assert not {
        name
        for command in cli._commands().keys() - {"costs", "tune"}
        for name in (command, f"{command}.help")
        if name not in NAMES
    }


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        ("4 of 9 in float16 (O2, v100)", "# of # in float16 (O2, v100)"),
        ("64x512  -1.5e-06  1,024 ms 16-bit", "#x#  #  # seconds 16-bit"),
        ("  64    ?x512  ", "  #  ?x#"),
        (
            "matmul_1.T, bf16 and __inference_f_12.",
            "matmul_#.T, bf16 and __inference_f_#.",
        ),
        ("0.8 -> 1.07 ms (0.74x ± 0.08)", "# -> # seconds (#x ± #)"),
        ("/tmp/there/page.html", "HERE/page.html"),
        ("I0000 00:00:1 1 port.cc:153] on\nkept\n", "kept\n"),
        ("usage: a [-h]\n         B\na: error\n", "usage: a [-h] B\na: error\n"),
    ],
)
def test_figures_and_paths_are_masked_and_names_are_not(
    printed: str, kept: str
) -> None:
    assert masked(printed, {"/tmp/there": "HERE"}) == kept
