"""The shell completes commands, options and files."""

import shutil
import sys

import pytest

from tests.processes import run
from tf_amp.commands import cli

# What bash does when the tab key is pressed behind these words.
COMPLETED = """
source completion.bash
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_shtab_tf_amp tf-amp "${{COMP_WORDS[$COMP_CWORD]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def completed(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--print-completion", "bash"])
    assert not ended.value.code
    (tmp_path / "completion.bash").write_text(capsys.readouterr().out)
    (tmp_path / "train.py").touch()

    def complete(words):
        command = ("bash", "-c", COMPLETED.format(words=words))
        return run(command, cwd=tmp_path).out.split()

    return complete


@pytest.mark.skipif(not shutil.which("bash"), reason="takes bash")
def test_bash_completes_commands_options_values_and_files(completed):
    assert completed("tf-amp expl") == ["explain"]
    assert completed("tf-amp run --los") == ["--loss-scale"]
    assert completed("tf-amp convert --dtype b") == ["bfloat16"]
    assert completed("tf-amp run tra") == ["train.py"]


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_have_theirs(shell, capsys):
    with pytest.raises(SystemExit):
        cli.main(["--print-completion", shell])
    assert "tf-amp" in capsys.readouterr().out


def test_without_shtab_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as ended:
        cli.main(["--print-completion", "bash"])
    assert ended.value.code == 2
    assert "pip install shtab" in capsys.readouterr().err
