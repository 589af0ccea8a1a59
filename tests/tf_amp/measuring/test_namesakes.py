"""Graphs that are called alike, and one that comes again, are distinguished."""

from __future__ import annotations

import functools
import json
import pathlib
import textwrap

import pytest
import tensorflow as tf

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.planning.draft import Outcome, Settings, Trial
from tests.forking import run_forked
from tests.tf_amp.measuring.given_steps import (
    SLOWER,
    Steps,
    product,
    trial_of,
    with_leftover,
)
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.scope_registry import Scope
from tf_amp.measuring import process_costs
from tf_amp.measuring.budget import DEFAULT, Allowance, Budget
from tf_amp.measuring.known_costs import KnownCosts
from tf_amp.measuring.steps import verdicts
from tf_amp.rewriting.graph_settings import settings_for
from tf_amp.tools.convert.planner import Planner


def test_a_rejected_graph_rejects_none_that_is_called_alike(steps: Steps) -> None:
    costs = KnownCosts("CPU", "this CPU", tf.__version__)

    def outcome(trial: Trial) -> Outcome:
        return verdicts.outcome_of(trial, costs, lambda is_faster: None)

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


def _settings() -> Settings:
    lists = OpLists.for_dtype("bfloat16")
    models = {"CPU": CostModel(DeviceProfile.load("cpu-generic"))}
    return Settings("bfloat16", lists, models, home=Home("CPU"))


@pytest.mark.parametrize("owner", ["scope", "planner"])
def test_graphs_that_are_called_alike_do_not_share_their_time(
    owner: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    budget = Budget(DEFAULT, clock=lambda: now[0], age=3600.0)
    monkeypatch.setattr(process_costs, "budget_of", lambda tune: budget)
    config = AmpConfig(enabled=True, dtype="bfloat16", cache_dir=tmp_path)
    owners = {
        "scope": functools.partial(settings_for, Scope("id", config)),
        "planner": Planner(_settings(), config=config).settings_for,
    }

    def allowance_of(graph_def: tf.compat.v1.GraphDef) -> Allowance:
        def shapes() -> Shapes:
            return shapes_from_graph_def(graph_def)

        tuner = owners[owner](graph_def, shapes).tuner
        assert tuner is not None
        return tuner.allowance

    with allowance_of(product(16)).spending():
        now[0] += 2.0
    assert allowance_of(with_leftover(product(16))).remaining() == 1.0
    assert allowance_of(product(32)).remaining() == 3.0


def _with_arguments(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Return a graph as the runtime has it: its arguments do not tell their shapes."""
    altered = tf.compat.v1.GraphDef.FromString(graph_def.SerializeToString())
    arguments = [node for node in altered.node if node.op == "Placeholder"]
    for index, node in enumerate(arguments):
        node.op = "_Arg"
        node.attr["T"].CopyFrom(node.attr["dtype"])
        node.attr["index"].i = index
        del node.attr["shape"], node.attr["dtype"]
    return altered


def test_a_graph_of_other_shapes_has_its_own_time_in_every_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    scope = Scope("id", AmpConfig(enabled=True, dtype="bfloat16", cache_dir=tmp_path))

    def begin_a_process() -> None:
        budget = Budget(DEFAULT, clock=lambda: now[0], age=3600.0)
        monkeypatch.setattr(process_costs, "budget_of", lambda tune: budget)

    def allowance_of(rows: int) -> Allowance:
        graph_def = product(rows)
        shapes = shapes_from_graph_def(graph_def)
        given = settings_for(scope, _with_arguments(graph_def), lambda: shapes)
        assert given.tuner is not None
        return given.tuner.allowance

    begin_a_process()
    with allowance_of(16).spending():
        now[0] += 2.0
    allowance_of(16).keep()
    assert allowance_of(32).remaining() == 3.0
    begin_a_process()
    assert allowance_of(16).remaining() == 0.0
    assert allowance_of(64).remaining() == 3.0


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
