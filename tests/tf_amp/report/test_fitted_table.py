"""Results on a terminal of any width: whole words, and a word on what is left out."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tf_amp.config.ranges import Ranges, TensorRange
from tf_amp.tools.verify.verification import Difference, TensorCheck, Verification

NAME = "StatefulPartitionedCall/functional_1/dense_12/MatMul/ReadVariableOp"


def shown(printable: object, width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    console.print(printable, highlight=False)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    return lines


@pytest.fixture
def verification() -> Verification:
    far = Difference(0.1, 0.03, 0.99)
    check = TensorCheck(NAME, "gradient", "float32", (128, 64), far, rounded=far)
    return Verification("step", (check,), "float16", 0.0039)


@pytest.fixture
def ranges() -> Ranges:
    row = TensorRange(NAME, 0, "ReadVariableOp", largest=7e4, smallest=1.0, values=1)
    return Ranges((row,), 1)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_has_the_columns_that_matter(verification, ranges, width):
    text = "\n".join(lines := shown(verification, width))
    assert "as far off in float32" in text and "dense_12" in text
    assert any(line.startswith("Not shown: cosine, shape") for line in lines)
    assert "--json" in text and "…" not in text
    text = "\n".join(shown(ranges, width))
    assert "ReadVariableOp" in text and "Not shown: in batch" in text
    assert "…" not in text


def test_a_wide_terminal_has_all_columns_in_one_line_each(verification, ranges):
    columns = ((verification, ("cosine", "kind")), (ranges, ("in batch", "smallest")))
    for printable, names in columns:
        text = "\n".join(shown(printable, 200))
        assert all(name in text for name in names)
        assert NAME in text and "Not shown" not in text


def test_a_notebook_has_all_columns(verification):
    assert "cosine" in verification._repr_html_() and NAME in verification._repr_html_()
