"""What runs the steps of one process, where tf-amp compares some of its own."""

from __future__ import annotations

import json

import pytest

from tests.tf_amp.compare.test_own_steps import run


@pytest.mark.parametrize("tune", ["on", "off"])
def test_what_tf_amp_compares_is_one_step_before_those_that_are_timed(tune, tmp_path):
    code = f"""
import json, pathlib
from tf_amp.tools.bench import worker
from tf_amp.tools.bench.journal import Journal, lines_of

slow, seconds = "float32", 0.2
tf_amp.enable(dtype="bfloat16", tune={tune!r})
path = pathlib.Path({str(tmp_path)!r}, "journal")
worker._run_steps(lambda: step(tf.constant(A)), Journal(path), 0.0)
print(json.dumps([rest for what, *rest in lines_of(path) if what == "step"]))
print(json.dumps([kind for what, kind, *_ in lines_of(path) if what == "values"]))
"""
    *_, steps, values = run(code, tmp_path)
    kinds, begins, ends, counts = zip(*json.loads(steps), strict=True)
    assert set(kinds) == {"own"} and json.loads(values) == ["own"] * 4
    assert len(counts) == (13 if tune == "on" else 12)
    compared = counts[1] if tune == "on" else 1
    assert counts == (1, compared, *[1] * (len(counts) - 2))
    if tune == "on":
        assert compared > 6 and ends[1] - begins[1] > 0.2
    assert max(e - b for b, e in zip(begins[2:], ends[2:], strict=True)) < 0.2
