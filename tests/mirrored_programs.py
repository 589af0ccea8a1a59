"""Programs on two replicas, for processes of their own."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Mapping

from tests.forking import run_forked
from tests.printed_programs import beginning
from tests.two_cpus import BEGIN

SECTIONS = pathlib.Path(__file__).with_name("keras_callbacks") / "sections.txt"


def sections_of(
    programs: Mapping[str, str], kit: str = "keras"
) -> dict[str, list[str]]:
    """Run programs on what those of `sections.txt` begin with, in one process.

    What is logged goes where results go, and so does what does not hold in one of them,
    so that each section has its own.

    Returns:
      The lines that each of them prints, by name.
    """
    code = [BEGIN, f"import {kit} as keras, traceback"]
    code.append(beginning(SECTIONS, "MIRRORED"))
    for name, program in programs.items():
        code += [f"print('section {name}', flush=True)", "def section():"]
        code += [textwrap.indent(program, "    "), "try:", "    section()"]
        code += ["except Exception:", "    traceback.print_exc(file=sys.stdout)"]
    lines = run_forked("\n".join(code)).lines()
    text = "\n" + "\n".join(lines)
    parts = [part.split("\n") for part in text.split("\nsection ")[1:]]
    return {part[0]: [line for line in part[1:] if line] for part in parts}
