"""Tutorials run as the notebooks that they are offered as, and print what they show.

Their cells run in children of a process that has imported TensorFlow: to import it for
each takes most of the time. One of them also runs in a kernel, as users run it, which
`make test-long` does.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

from tests.command_lines import run_line
from tests.forking import Child
from tests.long import parameters
from tests.processes import ROOT, sources

pytest.importorskip("mkdocs", reason="other TensorFlows are tried without docs")
nbclient = pytest.importorskip("nbclient")

FOLDER = ROOT / "docs" / "tutorials"
PAGES = sorted(FOLDER.glob("*.md"))
# It has cells of Python and of bash.
IN_A_KERNEL = "float16 in a kernel"
# They take a minute each.
LONG = ("custom_loop", "fine_tune", "worth_it", IN_A_KERNEL)
NUMBER = re.compile(r"\d+(,\d{3})*(\.\d+)?(e[+-]\d+)?")
# ipykernel has programs print in color.
COLOR = re.compile(r"\x1b\[[\d;]*m")
# Of what takes long: less.
BRIEFLY = {
    "bench train.py": "bench train.py --rounds 1 --step-seconds 0.1",
    "epochs=8": "epochs=2",
    "epochs=6": "epochs=2",
    "epochs=4": "epochs=2",
}
COMMAND = re.compile(r"^((?:tf-amp|python) .*)$", re.M)


class Session:
    """Cells of a notebook, of which those of Python run one by one in one process."""

    # TensorFlow looks up the source of functions, so that a cell is a file.
    LOOP = """
    import sys
    with open("asked") as asked, open("answers", "w") as answers:
        for name in map(str.strip, asked):
            exec(compile(open(name).read(), name, "exec"), globals())
            sys.stdout.flush()
            print("done", file=answers, flush=True)
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Start the process in a folder."""
        self._folder = folder
        self._numbers = itertools.count()
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        for name in ("asked", "answers"):
            os.mkfifo(folder / name)
        self._child = Child(self.LOOP, {}, self._out, self._err, folder)
        self._asked = (folder / "asked").open("w")
        self._answers = (folder / "answers").open()

    def run(self, cell: str) -> str:
        """Run a cell and return what it prints on stdout."""
        if cell.startswith("%%bash\n"):
            return self._run_lines(cell.removeprefix("%%bash\n"))
        before = self._out.stat().st_size
        name = f"cell_{next(self._numbers)}.py"
        (self._folder / name).write_text(cell)
        print(name, file=self._asked, flush=True)
        assert self._answers.readline() == "done\n", self._err.read_text()
        return self._out.read_bytes()[before:].decode()

    def _run_lines(self, cell: str) -> str:
        """Run commands in children, and what stands between them in bash."""
        printed = ""
        for part in filter(str.strip, COMMAND.split(cell)):
            if COMMAND.fullmatch(part):
                done = run_line(part, self._folder)
                assert done.code == 0, f"{part}\n{done.out}\n{done.err}"
                printed += done.out
            else:
                shell = subprocess.run(
                    ["bash", "-ec", part],
                    cwd=self._folder,
                    stdout=subprocess.PIPE,
                    check=True,
                    text=True,
                )
                printed += shell.stdout
        return printed

    def end(self) -> None:
        """Have the process end, and wait for it."""
        self._asked.close()
        self._answers.close()
        assert self._child.wait() == 0, self._err.read_text()


def _notebooks() -> types.ModuleType:
    path = ROOT / "docs" / "notebooks.py"
    spec = importlib.util.spec_from_file_location("notebooks", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", parameters((*(page.stem for page in PAGES), IN_A_KERNEL), LONG)
)
def test_a_tutorial_runs_and_prints_what_it_shows(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = FOLDER / f"{name.partition(' ')[0]}.md"
    notebook = _notebooks().notebook_of(page)
    install, *cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    check_installs(install.source)
    notebook.cells.remove(install)
    shown = [cell.outputs and printed(cell) for cell in cells]
    assert any(shown)
    for cell in cells:
        for long, brief in BRIEFLY.items():
            cell.source = cell.source.replace(long, brief)

    if name == IN_A_KERNEL:
        run_in_a_kernel(notebook, tmp_path, monkeypatch)
        texts = [printed(cell) for cell in cells]
    else:
        session = Session(tmp_path)
        texts = [session.run(cell.source) for cell in cells]
        session.end()

    for expected, text in zip(shown, texts, strict=True):
        if expected:
            check_same(expected, text)


def run_in_a_kernel(
    notebook: types.SimpleNamespace,
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run a notebook in a folder as Jupyter does, its outputs replaced."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(folder / name))
    monkeypatch.setenv("PYTHONPATH", sources()["PYTHONPATH"].rpartition(os.pathsep)[2])
    commands = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.defpath])
    monkeypatch.setenv("PATH", commands)
    at = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=at).execute()


def check_installs(command: str) -> None:
    """Check that a tutorial's first cell installs from a copy, by extras there are."""
    found = re.fullmatch(r"%pip install '\.\[([\w,]+)\]'", command)
    assert found, command
    project = (ROOT / "pyproject.toml").read_text()
    for extra in found[1].split(","):
        assert re.search(rf"^{extra} = \[", project, re.M), extra


def printed(cell: types.SimpleNamespace) -> str:
    """Return what a cell has written to stdout."""
    texts = [
        output.text
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout"
    ]
    return COLOR.sub("", "".join(texts))


def check_same(shown: str, got: str) -> None:
    """Check that a text is the one shown, where `...` is anything, but for figures."""
    parts = [NUMBER.sub("0", " ".join(part.split())) for part in shown.split("...")]
    pattern = ".*".join(map(re.escape, parts))
    normal = NUMBER.sub("0", " ".join(got.split()))
    assert re.fullmatch(pattern, normal), f"{shown}\n---\n{got}"


def test_what_differs_in_more_than_figures_is_found() -> None:
    check_same("first\n...\nlast 1.5x\n", "first\n2\nlast 1,000x\n")
    with pytest.raises(AssertionError):
        check_same("accuracy 0.9\n", "loss 0.9\n")
    with pytest.raises(AssertionError):
        check_same("accuracy 0.9\n", "accuracy nan\n")
