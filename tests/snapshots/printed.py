"""What the command lines of a snapshot print, as text.

A snapshot is a text of command lines behind a `$`, and what each of them prints. They
run one after the other in a folder of their own; `given.py` says what is there.
Plans are for a profile that is named, so that they are the same on every machine.
Besides `tf-amp`, `cat` prints a file that a command has written, of a page what its
reader sees, and `| grep` keeps lines that match.
"""

from __future__ import annotations

import html.parser
import os
import pathlib
import re
import shutil
import sys
import tempfile

from tests.command_lines import run_line
from tests.processes import ROOT, settings
from tests.snapshots.given import given_folder
from tests.snapshots.masking import masked

# No kernel of this CPU's is looked at.
_ENV = {"TF_AMP_CHECK": "off"}
# Where lines fold depends on their figures, which are masked: only help is folded.
_COLUMNS, _OF_HELP = "1000", "100"
_FOLDER = pathlib.Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.txt")))
# These are left to `make test-long`.
LONG = frozenset({"bench", "calibrate", "explain.measured"})
# These compute a product in 16 bits.
_RUN_PRODUCTS = frozenset(
    "bench calibrate convert.verified doctor doctor.json run verify verify.json".split()
)


def path_of(name: str) -> pathlib.Path:
    """Return where a snapshot is kept."""
    return _FOLDER / f"{name}.txt"


def lines_of(name: str) -> list[str]:
    """Return the command lines of a snapshot, as typed."""
    return re.findall(r"^\$ (.*)", path_of(name).read_text(), re.MULTILINE)


def why_not(name: str) -> str:
    """Say why a snapshot cannot be printed here; empty: it can.

    A product that TensorFlow gives to oneDNN for what the CPU has, and oneDNN may not
    compute, ends the process.
    """
    is_held = name in _RUN_PRODUCTS and "ONEDNN_MAX_CPU_ISA" in os.environ
    return "oneDNN is held to fewer instructions than the CPU has" * is_held


def text_of(name: str) -> str:
    """Return lines, what each prints, and its exit code where that is not 0."""
    with tempfile.TemporaryDirectory(prefix="tf-amp-snapshot-") as parent:
        folder = pathlib.Path(parent, "here")
        shutil.copytree(given_folder(), folder)
        return "\n".join(_printed(line, folder) for line in lines_of(name))


def _printed(line: str, folder: pathlib.Path) -> str:
    first, _, name = line.partition(" ")
    if first == "cat":
        return f"$ {line}\n{_masked(_file_text(folder / name), folder)}"
    command, _, pattern = line.partition(" | grep ")
    columns = _OF_HELP if command.endswith("--help") else _COLUMNS
    done = run_line(command, folder, env={**_ENV, "COLUMNS": columns})
    out = [each for each in done.out.splitlines() if re.search(pattern, each)]
    parts = [f"$ {line}\n", _masked("\n".join(out), folder)]
    if err := _masked(done.err, folder):
        parts.append(f"--- standard error\n{err}")
    if done.code:
        parts.append(f"--- exit code {done.code}\n")
    return "".join(parts)


def _masked(text: str, folder: pathlib.Path) -> str:
    paths = {
        str(folder): "HERE",
        str(ROOT): "ROOT",
        sys.executable: "PYTHON",
        settings()["TF_AMP_CACHE"]: "CACHE",
    }
    return masked(text if not text or text[-1] == "\n" else f"{text}\n", paths)


def _file_text(path: pathlib.Path) -> str:
    """Return what a file says; of a page what its reader sees."""
    if not path.exists():
        return "no such file\n"
    text = path.read_text()
    if path.suffix != ".html":
        return text
    page = _Page()
    page.feed(text)
    return "\n".join(page.lines) + "\n"


class _Page(html.parser.HTMLParser):
    """The text of a page, but for scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden and (said := " ".join(data.split())):
            self.lines.append(said)
