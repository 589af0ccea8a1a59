"""Results as HTML: tables of escaped text, and one line each in a list."""

from __future__ import annotations

import dataclasses
import io
import re

from rich.console import Console

from grappler_pass.graph.type_slots import TypeSlot
from grappler_pass.planning.plan import Cause, Decision, Plan, Reason
from tf_amp.config.ranges import Ranges, TensorRange
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
    page = dataclasses.replace(PLAN, decisions=(ROW,) * 1000)._repr_html_()
    assert len(re.findall("<tr>", page)) == 1 + 200
    assert "and 800 more rows" in page
    assert "more rows" not in PLAN._repr_html_()
