"""State of optimizers on the host, graphs and batches on unlike devices: programs."""

import pathlib

import pytest

from tests.printed_programs import PrintedProgram, programs_beside


@pytest.mark.parametrize("program", programs_beside(__file__))
def test_a_program_prints_what_its_text_says(
    program: PrintedProgram, tmp_path: pathlib.Path
) -> None:
    program.check(tmp_path)
