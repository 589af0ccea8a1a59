"""Plans that workers share, with prices drawn anew for each of them."""

from __future__ import annotations

import json
import pathlib

import pytest
import tensorflow as tf

from grappler_pass.graph.view import Item
from grappler_pass.planning.plan import Plan
from tests.rewriters import rewritten_by, settings_of
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.loss_scales.protocol import LossScale, StaticLossScale
from tf_amp.rewriting import agreement
from tf_amp.rewriting.agreement import SharedPlans
from tf_amp.rewriting.host import Memory

# One converts every operation of the chain, the other its products alone.
SEEDS = (2, 1)


class Exchange:
    """What workers tell each other, without any processes."""

    chief = "worker 0"

    def __init__(
        self, own: str, told: dict[str, str], others: tuple[str, ...] = ()
    ) -> None:
        self.own = own
        self.others = others
        self.is_chief = own == self.chief
        self.told = told

    def tell(self, what: str, value: str, *, anew: bool = False) -> None:
        key = f"{self.own}/{what}"
        # As TensorFlow's service deletes: a key, and those below.
        for below in [each for each in self.told if each.startswith(f"{key}/")]:
            if anew:
                del self.told[below]
        self.told[key] = value

    def ask(self, worker: str, what: str, seconds: float) -> str | None:
        return self.told.get(f"{worker}/{what}")


def graph_def(prefix: str, joint: bool = True) -> tf.compat.v1.GraphDef:
    """Return a chain of products whose sum the workers exchange, if joint."""
    with tf.Graph().as_default() as graph, tf.name_scope(prefix):
        x = tf.compat.v1.placeholder(tf.float32, (8, 8), "x")
        for _ in range(6):
            x = tf.nn.relu(tf.matmul(x, tf.nn.tanh(x)))
        if joint:
            numbers = {"group_size": 2, "group_key": 1, "instance_key": 1}
            x = tf.raw_ops.CollectiveReduceV2(
                input=x,
                **numbers,
                merge_op="Add",
                final_op="Id",
                ordering_token=[],
                max_subdivs_per_device=-1,
            )
        tf.identity(x, "y")
    return graph.as_graph_def()


def planned(
    worker: int, told: dict[str, str], *, joint: bool = True, prefix: str = "step"
) -> Plan:
    """Return the plan of a worker, whose prices are its own."""
    memory = SharedPlans(Memory(), Exchange(f"worker {worker}", told), seconds=0.0)
    settings = settings_of("bfloat16", "O1", seed=SEEDS[worker], memory=memory)
    item = Item(fetch=(f"{prefix}/y",))
    plan = rewritten_by(graph_def(prefix, joint), item, settings).plan
    assert plan is not None
    return plan


def dtypes(plan: Plan) -> list[str]:
    return [row.dtype for row in plan.decisions]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the warnings given meanwhile."""
    texts: list[str] = []
    warn = lambda text, *args: texts.append(text % args)  # noqa: E731
    monkeypatch.setattr("absl.logging.warning", warn)
    return texts


def test_a_worker_takes_the_plan_of_the_chief(heard: list[str]) -> None:
    told: dict[str, str] = {}
    chief, other = planned(0, told), planned(1, told, prefix="renamed")

    assert "bfloat16" in dtypes(chief)
    assert dtypes(other) == dtypes(chief) != dtypes(planned(1, {}))
    assert len(heard) == 1  # The last one has found no chief.


def test_a_worker_whose_chief_is_silent_decides_by_itself_and_says_so(
    heard: list[str],
) -> None:
    alone = planned(1, {})
    assert "bfloat16" in dtypes(alone)
    assert "worker 0 has sent no plan for graph 'test'" in heard[0]


def test_a_worker_hears_a_verdict_after_the_chief_has_told_the_plan_anew(
    heard: list[str],
) -> None:
    told: dict[str, str] = {}
    chief, other = (
        SharedPlans(Memory(), Exchange(f"worker {worker}", told)) for worker in (0, 1)
    )
    pairs = agreement.FEWEST_PAIRS
    chief._verdict("key", pairs, False)
    assert other._verdict("key", pairs, True) is None
    assert chief._verdict("key", pairs + 1, False) is False
    chief.workers.tell("key", "decided", anew=True)
    assert other._verdict("key", pairs + 1, True) is False
    assert not heard


def test_a_plan_that_does_not_fit_is_reported_as_a_disagreement(
    heard: list[str],
) -> None:
    told: dict[str, str] = {}
    planned(0, told)
    for key, text in told.items():
        told[key] = json.dumps({**json.loads(text), "count": 1, "low": "1"})
    other = planned(1, told)

    assert dtypes(other) == dtypes(planned(1, {}))
    assert "Plans disagree: graph 'test'" in heard[0] and "(AMP402)" in heard[0]


def test_a_graph_of_one_worker_alone_is_nobody_elses_affair(heard: list[str]) -> None:
    told: dict[str, str] = {}
    planned(0, told, joint=False)
    planned(1, told, joint=False)
    assert not told
    assert not heard


def test_a_setting_that_one_worker_alone_has_is_told(heard: list[str]) -> None:
    exchange = Exchange("worker 1", {"worker 0/settings": "{}"})
    agreement.compare({"TF_AMP_EXCLUDE": "head"}, exchange)
    (text,) = heard
    assert "TF_AMP_EXCLUDE is not set on worker 0 and head on worker 1" in text


def test_differing_and_missing_settings_are_named(heard: list[str]) -> None:
    told = {"worker 1/settings": '{"TF_AMP_DTYPE": "bfloat16"}'}
    exchange = Exchange("worker 0", told, ("worker 1", "worker 2"))
    config = AmpConfig(dtype="float16", opt_level="O2", log_dir=pathlib.Path("/here"))
    own = agreement.told_settings(config)
    agreement.compare(own, exchange, seconds=0.0)
    assert "TF_AMP_LOG" not in own
    differing, missing = heard
    assert "TF_AMP_DTYPE is bfloat16 on worker 1 and float16 on worker 0" in differing
    assert "TF_AMP_OPT_LEVEL is not set on worker 1" in differing
    assert missing.startswith("tf-amp: worker 2 has not said")


class Halving(LossScale):
    """A loss scale of the program's own."""


def test_a_loss_scale_of_ones_own_is_told_by_its_class() -> None:
    for loss_scale, told in (
        (Halving(), "the program's own Halving"),
        (StaticLossScale(64.0), "64.0"),
    ):
        own = agreement.told_settings(AmpConfig(loss_scale=loss_scale))
        assert own["TF_AMP_LOSS_SCALE"] == told
