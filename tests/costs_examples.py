"""Made-up rows of the cost database, and processes that use one."""

from __future__ import annotations

import functools
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import textwrap

from grappler_pass.costs.calls import TensorSpec
from grappler_pass.costs.database.price_database import CostDatabase
from grappler_pass.costs.database.price_list import Measured, Sample
from grappler_pass.costs.database.probes import Constant, Probe, cast_probe
from grappler_pass.costs.database.records import CostRow, Verdict
from tests import processes
from tests.processes import ROOT

DEVICE, VERSION = "a CPU, avx2, 2 threads, oneDNN on", "2.21.0"
WHEN = 1.75e9
ROWS = 400


def sample(seconds=1e-3, *, spread=0.1, count=10, when=WHEN):
    return Sample(seconds, seconds * 1.5, spread, count, when)


def measured(elements, figures=None):
    probe = cast_probe(elements, "float32", "bfloat16")
    return Measured(probe, "bfloat16", figures or sample((elements + 1) * 1e-9))


MATMUL = Probe(
    "MatMul",
    (("transpose_a", "b: false"), ("transpose_b", "b: true")),
    (("T", 0),),
    (TensorSpec((32, 784), "*"), TensorSpec((10, 784), "*")),
)
TRANSPOSE = Probe(
    "Transpose",
    (("Tperm", "type: DT_INT32"),),
    (("T", 0),),
    (TensorSpec((4, 4), "*"), TensorSpec((2,), "int32")),
    ((1, Constant("int32", (2,), (1, 0))),),
)
ROWS_OF_ALL_KINDS = [
    CostRow(DEVICE, VERSION, Measured(MATMUL, "float32", sample(2e-3, spread=0.05))),
    CostRow(DEVICE, VERSION, Measured(MATMUL, "bfloat16", sample(1e-3, count=30))),
    CostRow(DEVICE, VERSION, Measured(TRANSPOSE, "float32", sample(5e-7, count=9))),
    CostRow("another CPU", VERSION, Measured(MATMUL, "float32", sample(7.0))),
    CostRow(DEVICE, "2.20.0", measured(8)),
    Verdict(DEVICE, VERSION, "0f3c", True, 1.25, 1.0, 1e9),
]


def rows_of(*found):
    return [CostRow(DEVICE, VERSION, each) for each in found]


def keep(database, *sizes):
    database.keep(rows_of(*map(measured, sizes)))


def sizes_in(database, device=DEVICE, version=VERSION):
    rows = database.load(device, version)
    return {row.probe.inputs[0].elements for row in rows}


def start(program: str, path: pathlib.Path, *arguments: object) -> subprocess.Popen:
    """Start a program that has `database`, at `path`, and `keep` at hand."""
    prelude = """
        import os, pathlib, resource, signal, sys, time
        from grappler_pass.costs.database.price_database import CostDatabase
        from tests.costs_examples import *
        database = CostDatabase(pathlib.Path(sys.argv[1]))
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(program)
    command = [sys.executable, "-c", code, path, *arguments]
    return processes.start(command, env={"PYTHONPATH": str(ROOT)})


def run(program: str, path: pathlib.Path, *arguments: object) -> str:
    """Run such a program to its end; return what it printed."""
    child = start(program, path, *arguments)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    return out


@functools.cache
def full_content() -> bytes:
    """Return the content of a sound database of ROWS rows on many pages."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "full"
        keep(CostDatabase(path), *range(ROWS))
        return path.read_bytes()


def is_sound(path: pathlib.Path) -> bool:
    """Tell what SQLite itself says of a file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()


def files_beside(path: pathlib.Path) -> set[str]:
    """Return what is in the folder, each less the name of the database."""
    return {each.name.removeprefix(path.name) for each in path.parent.iterdir()}
