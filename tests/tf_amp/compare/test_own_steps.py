"""Real calls tell whether 16 bits are faster: `programs.txt`."""

from __future__ import annotations

import pathlib

import pytest

from tests.forking import run_tuned
from tests.printed_programs import PrintedProgram, beginning, programs_beside
from tf_amp.compare.own_steps import FLOAT32, StepComparison, Steps

PRELUDE = beginning(pathlib.Path(__file__).with_name("programs.txt"), "PRELUDE")


def run(code: str, cache: pathlib.Path, **env: str) -> list[str]:
    """Return what a program prints."""
    return run_tuned(PRELUDE + code, cache, **env)


@pytest.mark.parametrize("program", programs_beside(__file__))
def test_a_program_prints_what_its_text_says(
    program: PrintedProgram, tmp_path: pathlib.Path
) -> None:
    program.check(tmp_path)


def test_what_is_not_remembered_is_said_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(is_faster: bool, steps: Steps) -> None:
        raise OSError("planted")

    comparison = StepComparison(name="__inference_step_7")
    comparison.when_decided(fail)
    assert comparison.without("", lambda label: label) == FLOAT32
    assert "__inference_step_7" in caplog.text
    assert "OSError: planted" in caplog.text and "TF_AMP_TUNE=off" in caplog.text
