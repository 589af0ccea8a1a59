"""What steps have found is remembered, and what is in doubt is compared."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import textwrap

import pytest
import tensorflow as tf

from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Outcome, Trial
from tests.forking import run_forked
from tf_amp.compare import call_sites, own_steps
from tf_amp.compare.alternation import Verdict
from tf_amp.compare.verdicts import FILE, StepMemory, StepVerdicts

FASTER = Verdict(((2.0, 1.0),) * 20)
SLOWER = Verdict(((1.0, 2.0),) * 20)


@dataclasses.dataclass
class Steps:
    """Stands in for steps of a program, whose times are given."""

    begun: int = 0
    waiting: list[own_steps.Decided] = dataclasses.field(default_factory=list)

    def begin(
        self, trial: Trial, decided: own_steps.Decided, learn: own_steps.Profiled | None
    ) -> Outcome:
        """Begin a comparison."""
        self.begun += 1
        self.waiting.append(decided)
        return Outcome.OPEN

    def end(self, compared: Verdict | None) -> None:
        """End the comparison that has begun last."""
        found = own_steps.Steps(compared)
        self.waiting.pop()(compared is FASTER, found)


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


def trial_of(graph_def: tf.compat.v1.GraphDef, low_dtype: str = "bfloat16") -> Trial:
    """Return a trial of a graph called `step`."""
    after = tf.compat.v1.GraphDef.FromString(graph_def.SerializeToString())
    left_over = after.node.add(name="left/over", op="Placeholder")
    left_over.attr["dtype"].type = tf.as_dtype(low_dtype).as_datatype_enum
    return Trial(
        before=graph_def,
        after=after,
        item=Item(fetch=("fetch",)),
        shapes=shapes_from_graph_def(graph_def),
        seconds_before=1.0,
        seconds_after=0.5,
        name="step",
    )


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Steps that begin in this process."""
    steps = Steps()
    monkeypatch.setattr(
        call_sites.Entry, "begin", lambda entry, *args: steps.begin(*args)
    )
    return steps


@pytest.fixture
def trial() -> Trial:
    return trial_of(product(16))


def outcome(trial: Trial, folder: pathlib.Path) -> Outcome:
    """Return what a process says that has just started."""
    memory = StepMemory("this CPU", folder / FILE)
    own_steps = StepVerdicts(memory, {"CPU": memory})
    return own_steps.outcome(trial, lambda is_faster: None)


@pytest.mark.parametrize("compared", [FASTER, SLOWER])
def test_a_verdict_outlives_the_process(
    compared: Verdict, trial: Trial, tmp_path: pathlib.Path, steps: Steps
) -> None:
    assert outcome(trial, tmp_path) is Outcome.OPEN
    steps.end(compared)
    expected = Outcome.FASTER if compared is FASTER else Outcome.SLOWER
    assert outcome(trial, tmp_path) is expected
    assert steps.begun == 1


def test_what_failed_once_may_be_tried_by_another_process(
    trial: Trial, tmp_path: pathlib.Path, steps: Steps
) -> None:
    assert outcome(trial, tmp_path) is Outcome.OPEN
    steps.end(None)
    assert outcome(trial, tmp_path) is Outcome.OPEN


def test_what_is_certain_is_not_compared_unless_steps_have_said_otherwise(
    trial: Trial, tmp_path: pathlib.Path, steps: Steps
) -> None:
    certain = dataclasses.replace(trial, is_certain=True)
    assert outcome(certain, tmp_path) is Outcome.UNKNOWN
    assert steps.begun == 0
    assert outcome(trial, tmp_path) is Outcome.OPEN
    steps.end(SLOWER)
    assert outcome(certain, tmp_path) is Outcome.SLOWER


def _with_function_of(op: str, **attrs: object) -> tf.compat.v1.GraphDef:
    """Return a graph that has a function with a node in its library."""
    graph_def = product(16)
    function = graph_def.library.function.add()
    function.signature.name = "inner"
    node = function.node_def.add(name="inner", op=op)
    for name, value in attrs.items():
        field = "s" if isinstance(value, bytes) else "i"
        setattr(node.attr[name], field, value)
    return graph_def


@pytest.mark.parametrize(
    ("graph_def", "expected"),
    [
        (_with_function_of("RandomUniform", seed=0, seed2=0), Outcome.OPEN),
        (_with_function_of("RandomUniform", seed=0, seed2=7), Outcome.KERNEL_STATE),
        (_with_function_of("StatelessRandomUniformV2"), Outcome.OPEN),
        (_with_function_of("FIFOQueueV2"), Outcome.KERNEL_STATE),
        (_with_function_of("FIFOQueueV2", shared_name=b"queue"), Outcome.OPEN),
        (_with_function_of("BatchFunction", shared_name=b""), Outcome.KERNEL_STATE),
        (_with_function_of("Stage"), Outcome.OPEN),
    ],
)
def test_what_keeps_state_in_kernels_is_not_compared(
    graph_def: tf.compat.v1.GraphDef,
    expected: Outcome,
    tmp_path: pathlib.Path,
    steps: Steps,
) -> None:
    assert outcome(trial_of(graph_def), tmp_path) is expected
    assert steps.begun == (expected is Outcome.OPEN)


def test_outside_of_a_call_nothing_is_compared(
    trial: Trial, tmp_path: pathlib.Path
) -> None:
    assert outcome(trial, tmp_path) is Outcome.UNKNOWN


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
    arguments = ["audit", str(script), "--device-profile", "v100", "--json"]
    done = run_forked(f"from tf_amp.commands import cli; cli.main({arguments})")
    audits = json.loads("\n".join(done.lines()))
    assert [audit["graph"] for audit in audits] == ["step"] * 3
    assert len({audit["seconds_float32"] for audit in audits}) == 3
