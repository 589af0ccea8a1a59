"""Switching on and off, in processes of their own."""

import pathlib

import pytest

from tests.printed_programs import PrintedProgram, programs_beside
from tests.processes import ROOT, run_python


@pytest.mark.parametrize("program", programs_beside(__file__))
def test_a_program_prints_what_its_text_says(
    program: PrintedProgram, tmp_path: pathlib.Path
) -> None:
    program.check(tmp_path)


def test_import_is_quick_and_needs_no_tensorflow():
    program = """
        import sys, tf_amp
        heavy = {"tensorflow", "numpy", "scipy", "absl", "rich"}
        print(sorted(heavy & set(sys.modules)))
        # A program that names it may still configure TensorFlow's start.
        tf_amp.enable, tf_amp.init, tf_amp.disable, tf_amp.is_enabled, tf_amp.plans
        print("tensorflow" in sys.modules)
    """
    assert run_python(program).lines() == ["[]", "False"]


def test_a_missing_or_old_tensorflow_is_a_clear_error(tmp_path):
    old = tmp_path / "old" / "tensorflow"
    broken = tmp_path / "broken" / "tensorflow"
    for folder, text in (
        (old, "__version__ = '2.4.1'"),
        (broken, "raise ImportError('No module named tensorflow')"),
    ):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
    for folder, parts in (
        (old, ("2.4.1 is too old", "2.16", "pip install")),
        (broken, ("cannot be imported", "pip install tensorflow-cpu, or")),
    ):
        env = {"PYTHONPATH": f"{folder.parent}:{ROOT}"}
        done = run_python("import tf_amp; tf_amp.enable()", env=env)
        assert done.code == 1
        last = done.err.strip().splitlines()[-1]
        assert last.startswith("tf_amp.errors.TensorFlowMissingError:")
        for part in parts:
            assert part in last
