"""Graphs that are called alike, and one that comes again, are distinguished."""

from __future__ import annotations

import json
import pathlib
import textwrap

from grappler_pass.planning.draft import Outcome, Trial
from tests.forking import run_forked
from tests.tf_amp.compare.given_steps import (
    SLOWER,
    Steps,
    product,
    trial_of,
)
from tf_amp.compare.verdicts import StepMemory, StepVerdicts


def test_a_rejected_graph_rejects_none_that_is_called_alike(steps: Steps) -> None:
    memory = StepMemory("this CPU", None)
    own_steps = StepVerdicts(memory, {"CPU": memory})

    def outcome(trial: Trial) -> Outcome:
        return own_steps.outcome(trial, lambda is_faster: None)

    rejected = trial_of(product(16))
    assert outcome(rejected) is Outcome.OPEN
    steps.end(SLOWER)
    assert outcome(rejected) is Outcome.SLOWER
    assert outcome(trial_of(product(32))) is Outcome.OPEN
    assert outcome(trial_of(product(16), "float16")) is Outcome.OPEN
    # Traced anew, and settings that make another plan of the same products.
    elsewhere = trial_of(product(16, b"others:step:2"))
    elsewhere.after.node.add(name="cast", op="NoOp", device="/device:CPU:0")
    assert outcome(elsewhere) is Outcome.OPEN
    assert steps.begun == 4


_STEPS = """
    import tensorflow as tf

    def step_of(products):
        @tf.function
        def step(x, w):
            for _ in range(products):
                x = tf.nn.relu(x @ w)
            return x
        return step

    for products, size in ((1, 64), (3, 512), (2, 256)):
        step_of(products)(tf.ones((size, size)), tf.ones((size, size)))
    step_of(1)(tf.ones((64, 64)), tf.ones((64, 64)))
"""


def test_every_graph_of_a_script_is_audited_whatever_its_name(
    tmp_path: pathlib.Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(_STEPS))
    arguments = ["audit", str(script), "--device", "v100", "--json"]
    done = run_forked(f"from tf_amp.commands import cli; cli.main({arguments})")
    audits = json.loads("\n".join(done.lines()))
    assert [audit["graph"] for audit in audits] == ["step"] * 3
    assert len({audit["seconds_float32"] for audit in audits}) == 3
