"""Rows of the table match the kernels that are wrong, and no others near them."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf

from grappler_pass.eligibility import known_wrong
from grappler_pass.eligibility.known_wrong import (
    ALSO_IN_FLOAT32,
    ROWS,
    Machine,
    row_for,
)
from tests.processes import ROOT
from tests.wrong_kernels import PROGRAMS

EVERYTHING = frozenset("avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16".split())
MACHINE = Machine("CPU", EVERYTHING, threads=32)
WITHOUT_AMX = MACHINE._replace(flags=EVERYTHING - {"amx_bf16"})
# Those for float16 alone; of the others bfloat16 has them all.
OF_FLOAT16 = {"C", "C gradient", "G mean"}
WITHOUT = {"A4", "A4 of 64", "A5", "A6"}


def dtype_of(name: str) -> str:
    return "float16" if name in OF_FLOAT16 else "bfloat16"


def machine_of(name: str) -> Machine:
    """Return the machine that has a program's fault."""
    if name.startswith("F2"):
        return MACHINE._replace(onednn=False)
    # With AMX other rows come before.
    return WITHOUT_AMX if name in WITHOUT else MACHINE


def row_at(name: str, shapes) -> str:
    """Return the name of the row that a program's kernel has at some sizes."""
    row = row_for(PROGRAMS[name].kernel(dtype_of(name), shapes), machine_of(name))
    return "" if row is None else row.name


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_kernel_has_its_row(name: str) -> None:
    assert row_at(name, PROGRAMS[name].shapes) == name.partition(" ")[0]


@pytest.mark.parametrize("name", [n for n, p in PROGRAMS.items() if p.right])
def test_a_right_one_near_it_has_none(name: str) -> None:
    assert not row_at(name, PROGRAMS[name].right)


def test_each_row_has_a_program_and_a_place_in_the_page() -> None:
    of_cpus = {row.name for row in ROWS if row.flags != "GPU"}
    assert of_cpus == {name.partition(" ")[0] for name in PROGRAMS}
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    missing = [row.name for row in (*ROWS, *ALSO_IN_FLOAT32) if str(row) not in page]
    assert not missing


EIGEN = MACHINE._replace(onednn=False)
OPEN_B = ((8, None, None, 64), (8, None, None, 64))


@pytest.mark.parametrize(
    ("name", "dtype", "shapes", "machine", "found"),
    [
        # A size that the graph leaves open matches, as do threads that are not known.
        ("C", "float16", ((2, 7, None, 40), (7, 1, 40, 8)), MACHINE, "C"),
        ("C", "float16", ((2, 7, None, 48), (7, 1, 48, 8)), MACHINE, ""),
        ("B", "bfloat16", OPEN_B, MACHINE, "B"),
        ("H", "bfloat16", None, MACHINE._replace(threads=None), "H"),
        ("H", "bfloat16", None, MACHINE._replace(threads=2), ""),
        # A row holds where its instruction set and its library are.
        ("A1", "bfloat16", None, WITHOUT_AMX, ""),
        ("B", "bfloat16", None, WITHOUT_AMX, "B"),
        ("C", "float16", None, EIGEN, ""),
        ("F", "bfloat16", None, EIGEN, "F"),
        ("F", "bfloat16", None, Machine("GPU"), ""),
        # From the version on that has it.
        ("D1", "float16", None, MACHINE._replace(tensorflow=(2, 22)), "D1"),
        ("D1", "float16", None, MACHINE._replace(tensorflow=(2, 20)), "D1"),
        ("D1", "float16", None, MACHINE._replace(tensorflow=(2, 19)), ""),
        # The other type is right where a row names one.
        ("C", "bfloat16", None, MACHINE, ""),
    ],
)
def test_a_row_holds_for_its_sizes_type_and_machines(
    name: str, dtype: str, shapes, machine: Machine, found: str
) -> None:
    program = PROGRAMS[name]
    row = row_for(program.kernel(dtype, shapes or program.shapes), machine)
    assert ("" if row is None else row.name) == found


def test_an_einsum_of_another_rank_than_its_letters_has_no_row() -> None:
    program = PROGRAMS["D3 of letters"]
    kernel = program.kernel("bfloat16", program.shapes)
    flat = kernel.operands[0]._replace(shape=(8, 64))
    guessed = dataclasses.replace(kernel, operands=(flat, kernel.operands[1]))
    assert row_for(kernel, MACHINE) and not row_for(guessed, MACHINE)


def test_what_xla_compiles_has_no_row() -> None:
    kernel = PROGRAMS["F"].kernel("bfloat16", PROGRAMS["F"].shapes)
    assert row_for(kernel, MACHINE)
    assert not row_for(kernel, MACHINE, compiled=True)


def test_a_recurrence_in_bfloat16_is_refused_on_gpus_alone() -> None:
    def call(x, h, c, w):
        return tf.raw_ops.CudnnRNNV3(
            input=x, input_h=h, input_c=c, params=w, sequence_lengths=[3, 3]
        ).output

    program = PROGRAMS["B"].__class__(call, ())
    shapes = ((3, 2, 4), (1, 2, 4), (1, 2, 4), (100,))
    kernel = program.kernel("bfloat16", shapes, "/device:GPU:0")
    row = row_for(kernel, Machine("GPU"))
    assert row is not None and row.name == "R"
    half = program.kernel("float16", shapes, "/device:GPU:0")
    assert row_for(half, Machine("GPU")) is None


def test_a_fused_op_is_looked_up_by_its_product() -> None:
    assert known_wrong.may_be_wrong("_FusedConv2D")
    assert not known_wrong.may_be_wrong("_FusedMatMul")
