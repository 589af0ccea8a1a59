"""What a type checker and an editor know of the public names."""

from __future__ import annotations

import pathlib
import re
from typing import get_args

import pytest

from tests.processes import ROOT
from tf_amp.config.amp_config import LEVELS, OptLevel
from tf_amp.config.loss_scales.words import _CLASSES, LossScaleWord

PROGRAM = """
import keras_callbacks
import tf_amp
tf_amp.enable("bfloat16", opt_level="O2", tune="off", loss_scale="dynamic")
tf_amp.enable("float16", loss_scale="dynamic:initial=8", exclude=["head/"])
with tf_amp.mixed_precision_scope("float16", opt_level="O1", loss_scale=8.0):
    tf_amp.placement.offload_report
keras_callbacks.AutoMixedPrecision("bfloat16", opt_level="O3")
tf_amp.enabel()  # wrong
tf_amp.enable("bfloat61")  # wrong
tf_amp.enable(opt_level="O4")  # wrong
tf_amp.mixed_precision_scope("float32")  # wrong
tf_amp.convert("model", "out", weights="half")  # wrong
tf_amp.placement.ofload_report  # wrong
keras_callbacks.AutoMixedPrecision(opt_level="02")  # wrong
keras_callbacks.StepTimeMonitors()  # wrong
"""


def test_a_type_checker_refuses_wrong_names_and_words_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = pytest.importorskip("mypy.api", reason="other TensorFlows are tried without")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.chdir(ROOT)
    # The settings, and so the cache, of `make lint`.
    out, err, _ = api.run([str(program)])
    assert not err
    wrong = {n for n, s in enumerate(PROGRAM.split("\n"), 1) if s.endswith("# wrong")}
    assert {int(n) for n in re.findall(r"program\.py:(\d+): error", out)} == wrong, out


def test_the_words_of_types_are_those_that_are_taken() -> None:
    assert get_args(OptLevel) == tuple(LEVELS)
    assert get_args(LossScaleWord) == tuple(_CLASSES)
