"""The folder of TF_AMP_LOG: graphs that stay as they are, and those that fail."""

from __future__ import annotations

import pathlib
import re

import pytest
from google.protobuf import text_format
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.planning.plan import Cause, Plan
from tests.forking import run_forked
from tests.fresh_process import output_of


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_each_graph_is_written_once_and_tells_why_it_stays_float32(
    tmp_path: pathlib.Path, level: str
) -> None:
    lines = output_of(
        f"""
        log_dir = {str(tmp_path)!r}
        tf_amp.enable("bfloat16", opt_level={level!r}, log_dir=log_dir, strict=True)
        def without_product(x):
            return tf.exp(x) + tf.reduce_sum(x)
        # Two graphs that differ in nothing.
        for _ in range(2):
            tf.function(without_product)(X)
        product()(X, EYE)
        print(len(tf_amp.plans()))
        """
    )
    assert lines == ["0" if level == "O1" else "1"]
    files = sorted(re.sub(r"^\d+-", "", path.name) for path in tmp_path.iterdir())
    kept = ("before.pbtxt", "plan.json", "plan.txt")
    assert files[:6] == [
        f"{number}-without_product.{suffix}"
        for number in ("0001", "0002")
        for suffix in kept
    ]
    changed = kept if level == "O1" else ("after.pbtxt", *kept)
    assert files[6:] == [f"0003-function_at_string_11.{suffix}" for suffix in changed]
    if level != "O1":
        before, after = (
            next(tmp_path.glob(f"*-0003-*.{when}.pbtxt")).read_text()
            for when in ("before", "after")
        )
        assert "DT_BFLOAT16" in after and "DT_BFLOAT16" not in before
    path = next(tmp_path.glob("*-0001-*.json"))
    plan = Plan.from_json(path.read_text())
    assert (plan.graph, plan.opt_level, plan.is_empty) == (
        "without_product",
        level,
        True,
    )
    causes = {decision.op: decision.reason.cause for decision in plan.decisions}
    assert causes["Exp"] is Cause.NO_PRODUCT
    assert causes["Sum"] is Cause.DENY


@pytest.mark.parametrize("verbose", [True, False])
def test_a_folder_that_is_made_is_named_once(
    tmp_path: pathlib.Path, verbose: bool
) -> None:
    program = f"""
import os, tensorflow as tf, tf_amp
os.chdir({str(tmp_path)!r})
for _ in range(2):
    tf_amp.enable(log_dir="ture", verbose={verbose})
    tf.function(lambda x: x @ x)(tf.ones((8, 8)))
"""
    said = [each for each in run_forked(program).err.splitlines() if "AMP113" in each]
    folder = f"the folder {tmp_path}/ture, which is new"
    line = f"tf-amp: graphs and their plans are written to {folder} (AMP113)"
    assert said == [line] * verbose


@pytest.mark.parametrize(
    ("fails", "way"),
    [
        ("grappler_pass.pipeline.optimize", "autograph=True"),
        ("tf_amp.rewriting.arriving_graphs.marks_from_graph_def", "autograph=True"),
        ("tf_amp.rewriting.compiled._rewrite_accessed", "jit_compile=True"),
    ],
)
def test_a_graph_whose_rewrite_fails_is_written_with_its_error(
    tmp_path: pathlib.Path, fails: str, way: str
) -> None:
    lines = output_of(
        f"""
        from unittest import mock

        tf_amp.enable("bfloat16", opt_level="O2", log_dir={str(tmp_path)!r})
        for _ in range(2):
            guilty = tf.function(lambda x, y: tf.nn.relu(x @ y), {way})
            with mock.patch({fails!r}, side_effect=ZeroDivisionError("planted")):
                print(dtype_of(guilty))
        """
    )
    assert lines == ["float32", "float32"]
    written = sorted(tmp_path.iterdir())
    kinds = [path.name.partition("-")[2].split(".", 1) for path in written]
    numbers, suffixes = zip(*kinds, strict=True)
    assert [number[:4] for number in numbers] == ["0001", "0001", "0002", "0002"]
    assert suffixes == ("before.pbtxt", "error.txt") * 2
    graph_def = text_format.Parse(written[0].read_text(), GraphDef())
    assert "MatMul" in {node.op for node in graph_def.node}
    assert "ZeroDivisionError: planted" in written[1].read_text()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "log"
    # The disk is full after so many bytes; a process that is killed ends as abruptly.
    done = run_forked(
        f"""
        import resource
        import tensorflow as tf, tf_amp
        tf_amp.enable("bfloat16", opt_level="O2", log_dir={str(folder)!r})
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
        tf.function(lambda x: tf.nn.relu(x @ x))(tf.ones((256, 256)))
        """
    )
    assert done.code == 0, done.err
    assert folder.is_dir() and not any(folder.iterdir())


PLANNED = """
from absl import logging
tf_amp.enable("bfloat16", opt_level="O2"{}, strict=True)
{}
print(dtype_of(product()), *(plan.peak_bytes_before for plan in tf_amp.plans()))
"""


def test_memory_is_predicted_only_for_plans_that_something_shows(
    tmp_path: pathlib.Path,
) -> None:
    unseen = output_of(PLANNED.format("", ""))
    assert unseen == ["bfloat16 0"]
    seen = [
        output_of(PLANNED.format(f", log_dir={str(tmp_path)!r}", "")),
        output_of(PLANNED.format("", "logging.set_verbosity(logging.INFO)")),
        output_of(
            PLANNED.format(
                "",
                "from tf_amp.rewriting import host; "
                "host.current().watchers.append(lambda rewrite: None)",
            )
        ),
    ]
    # Two inputs and their product.
    assert seen == [["bfloat16 768"]] * 3
    assert "MiB" in next(tmp_path.glob("*.plan.txt")).read_text()
