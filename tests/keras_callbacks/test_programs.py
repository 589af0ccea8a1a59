"""Callbacks and exchanges on two replicas: `programs.txt`."""

import pytest

from tests.printed_programs import programs_beside


@pytest.mark.parametrize("program", programs_beside(__file__))
def test_a_program_prints_what_its_text_says(program, tmp_path):
    program.check(tmp_path)
