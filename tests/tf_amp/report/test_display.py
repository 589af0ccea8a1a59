"""Results in notebooks, in lists, and on terminals of any width."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from rich.console import Console

from grappler_pass.graph.type_slots import TypeSlot
from grappler_pass.planning.plan import Cause, Decision, Plan, Reason
from tf_amp.config.ranges import Ranges, TensorRange
from tf_amp.report.display import show
from tf_amp.tools.audit import Audit
from tf_amp.tools.obstacles import Obstacle
from tf_amp.tools.prediction import OpTimes, Prediction, Times
from tf_amp.tools.verify.verification import Difference, TensorCheck, Verification
from tf_amp.training.overflow_origin import OverflowOrigin
from tf_amp.training.report import LossScaleState

# What a browser, and what rich would take for something else than text.
BAD = "<script>a[/b]&"
ESCAPED = "&lt;script&gt;a[/b]&amp;"

ROW = Decision(TypeSlot(BAD, "T", 0), BAD, "float32", Reason(Cause.DENY, BAD))
PLAN = Plan((ROW,), "bfloat16", graph=BAD)
TIMES = Times(1e-3, 2e-3)
OBSTACLE = Obstacle(BAD, (BAD,), "float32", BAD, 1e-3, 1e-3, BAD, BAD)
CHECK = TensorCheck(BAD, "output", "float32", (2,), Difference())
RESULTS = (
    PLAN,
    Prediction(PLAN, TIMES, TIMES, (OpTimes(BAD, 1, TIMES, TIMES),)),
    Audit("v100", BAD, PLAN, (OBSTACLE,), "kernels", "assumptions"),
    Verification(BAD, (CHECK,), "bfloat16", 0.03, BAD, 1, BAD),
    Ranges((TensorRange(BAD, 0, "MatMul"),), 1),
    LossScaleState(2.0, 1, 1, OverflowOrigin(BAD, BAD, BAD, "float16")),
)


def test_text_of_the_user_is_neither_html_nor_markup() -> None:
    for result in RESULTS:
        page = result._repr_html_()
        assert "<script>" not in page and ESCAPED in page, type(result)
        assert page.count("<table>") == page.count("</table>") >= 1
        out = io.StringIO()
        Console(file=out, width=2000).print(result)
        assert BAD in out.getvalue(), type(result)


def test_each_result_is_one_line_in_a_list() -> None:
    for result in RESULTS:
        text = repr([result])
        assert text.startswith(f"[<{type(result).__name__} ") and text.endswith(">]")
        assert "\n" not in text and "Decision(" not in text


def test_of_a_long_plan_the_first_rows_are_shown_and_the_rest_counted() -> None:
    rows = (
        dataclasses.replace(ROW, slot=TypeSlot(f"{number}", "T", 0))
        for number in range(1000)
    )
    page = dataclasses.replace(PLAN, decisions=tuple(rows))._repr_html_()
    assert len(re.findall("<tr>", page)) == 1 + 200
    # One row is that of their reason.
    assert "and 801 more rows" in page
    assert "more rows" not in PLAN._repr_html_()


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


@pytest.mark.parametrize(("columns", "width"), [(None, 100), ("60", 60), ("140", 140)])
def test_in_a_file_text_is_folded_and_no_column_is_left_out(
    verification, columns, width, monkeypatch, capsys
):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    show("word " * 100, PLAN, verification)
    words, *_ = lines = capsys.readouterr().out.splitlines()
    assert width - len("word ") <= len(words) <= width
    assert all(len(line) <= width for line in lines[: lines.index("step")])
    text = "\n".join(lines)
    assert "Not shown" not in text and "…" not in text
    assert all(title in text for title in ("cosine", "kind", "rounded"))
