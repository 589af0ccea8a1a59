"""Graphs that are called alike, and one that comes again, are told apart."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import textwrap

import pytest
import tensorflow as tf

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.draft import Settings, Trial
from grappler_pass.graph import Item
from grappler_pass.op_lists import OpLists
from grappler_pass.shapes import Shapes, shapes_from_graph_def
from tests.forking import run_forked
from tf_amp import process_costs
from tf_amp.configuration.config import AmpConfig
from tf_amp.configuration.settings import Scope
from tf_amp.converting.planner import Planner
from tf_amp.devices import cpu_flags
from tf_amp.tuning import verdicts
from tf_amp.tuning.budget import DEFAULT, Allowance, Budget
from tf_amp.tuning.judging import Judgment
from tf_amp.tuning.known_costs import KnownCosts
from tf_amp.tuning.trial import Comparison

_FASTER = Judgment(Comparison(((2.0, 1.0),) * 20))
_SLOWER = Judgment(Comparison(((1.0, 2.0),) * 20))


@dataclasses.dataclass
class Judge:
    """Finds one graph after the other what it is told to."""

    answers: list[Judgment]
    asked: int = 0

    def __call__(self, trial: Trial, seconds: float) -> Judgment:
        """Return the next answer."""
        self.asked += 1
        return self.answers.pop(0)


def product(rows: int, stamp: bytes = b"settings:step:1") -> tf.compat.v1.GraphDef:
    """Return a product whose node has the same name whatever its size."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [rows, 8], name="x")
        w = tf.compat.v1.placeholder(tf.float32, [8, 8], name="w")
        tf.identity(tf.matmul(x, w, name="product"), name="fetch")
    graph_def = graph.as_graph_def()
    for node in graph_def.node:
        node.attr["_tf_amp"].s = stamp
    return graph_def


def with_leftover(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Return a graph as if Grappler had optimized it once more."""
    altered = tf.compat.v1.GraphDef.FromString(graph_def.SerializeToString())
    altered.node.add(name="left/over", op="NoOp")
    return altered


def trial_of(graph_def: tf.compat.v1.GraphDef, low_dtype: str = "bfloat16") -> Trial:
    """Return a trial of a graph called `step`."""
    after = with_leftover(graph_def)
    after.node[-1].op = "Placeholder"
    after.node[-1].attr["dtype"].type = tf.as_dtype(low_dtype).as_datatype_enum
    return Trial(
        before=graph_def,
        after=after,
        item=Item(fetch=("fetch",)),
        shapes=shapes_from_graph_def(graph_def),
        seconds_before=1.0,
        seconds_after=0.5,
        name="step",
        low_dtype=low_dtype,
    )


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """The first graph is slower in 16 bits, all others are faster."""
    judge = Judge([_SLOWER, *[_FASTER] * 9])
    monkeypatch.setattr(verdicts, "judge", judge)
    monkeypatch.setattr(verdicts, "_found", {})
    monkeypatch.setattr(verdicts, "_rejected", set())
    return judge


def is_faster(trial: Trial) -> bool | None:
    """Return the verdict of a process without a database."""
    costs = KnownCosts("CPU", "this CPU", tf.__version__)
    return verdicts.is_faster(trial, costs, Budget(DEFAULT).allowance("graph"))


def test_a_rejected_graph_rejects_none_that_is_called_alike(judged: Judge) -> None:
    rejected = trial_of(product(16))
    assert is_faster(rejected) is False
    assert is_faster(trial_of(product(32))) is True
    assert is_faster(trial_of(product(16), "float16")) is True
    # Traced anew, and settings that make another plan of the same products.
    elsewhere = trial_of(product(16, b"others:step:2"))
    elsewhere.after.node.add(name="cast", op="NoOp", device="/device:CPU:0")
    assert is_faster(elsewhere) is True
    assert judged.asked == 4
    again = dataclasses.replace(rejected, before=with_leftover(rejected.before))
    assert is_faster(again) is False
    assert judged.asked == 4


def _settings() -> Settings:
    lists = OpLists.for_dtype("bfloat16")
    models = {"CPU": CostModel(DeviceProfile.load("cpu-generic"))}
    return Settings("bfloat16", lists, models)


@pytest.mark.parametrize("owner", ["scope", "planner"])
def test_graphs_that_are_called_alike_do_not_share_their_time(
    owner: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    budget = Budget(DEFAULT, clock=lambda: now[0])
    monkeypatch.setattr(process_costs, "budget_of", lambda tune: budget)
    config = AmpConfig(enabled=True, dtype="bfloat16", cache_dir=tmp_path)
    owners = {
        "scope": Scope("id", config),
        "planner": Planner(_settings(), config=config),
    }

    def allowance_of(graph_def: tf.compat.v1.GraphDef) -> Allowance:
        def shapes() -> Shapes:
            return shapes_from_graph_def(graph_def)

        tuner = owners[owner].settings_for(graph_def, shapes).tuner
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
        budget = Budget(DEFAULT, clock=lambda: now[0])
        monkeypatch.setattr(process_costs, "budget_of", lambda tune: budget)

    def allowance_of(rows: int) -> Allowance:
        graph_def = product(rows)
        shapes = shapes_from_graph_def(graph_def)
        given = scope.settings_for(_with_arguments(graph_def), lambda: shapes)
        assert given.tuner is not None
        return given.tuner.allowance

    begin_a_process()
    with allowance_of(16).spending():
        now[0] += 2.0
    allowance_of(16).keep()
    assert allowance_of(32).remaining() == 3.0
    begin_a_process()
    assert allowance_of(16).remaining() == 1.0
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
    done = run_forked(f"from tf_amp import cli; cli.main({arguments})")
    audits = json.loads("\n".join(done.lines()))
    assert [audit["graph"] for audit in audits] == ["step"] * 3
    assert len({audit["seconds_float32"] for audit in audits}) == 3


_PROGRAM = """
    import tensorflow as tf
    import tf_amp
    from tests.test_namesakes import _FASTER, _SLOWER, Judge
    from tf_amp.tuning import tuner, verdicts

    tuner.OnlineTuner.measure = lambda self, stakes, low_dtype: False
    verdicts.judge = judge = Judge([_SLOWER, _FASTER])
    tf_amp.enable(dtype="bfloat16")

    def step_of():
        @tf.function
        def step(x, w):
            return tf.nn.relu(x @ w) @ w
        return step

    for size in (640, 1024):
        step_of()(tf.ones((size, size)), tf.ones((size, size)))
        print(judge.asked, len(tf_amp.plans()))
"""


@pytest.mark.skipif(
    not cpu_flags() & {"avx512_bf16", "amx_bf16"},
    reason="without 16-bit units no plan is worth a trial",
)
def test_grappler_comes_twice_and_each_graph_is_tried_once(
    tmp_path: pathlib.Path,
) -> None:
    env = {"TF_AMP_TUNE": "budget", "TF_AMP_CACHE": str(tmp_path)}
    assert run_forked(_PROGRAM, env=env).lines()[-2:] == ["1 0", "2 1"]
