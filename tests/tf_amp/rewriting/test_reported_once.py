"""What is told once is remembered, but not without end."""

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.plan import Plan
from tf_amp.config.amp_config import AmpConfig
from tf_amp.rewriting import arriving_graphs, failures, host


def test_of_thousands_of_failures_the_latest_are_remembered(caplog):
    for number in [*range(2000), 1999]:
        error = RuntimeError(f"number {number}")
        failures.report(error, "graph", config=AmpConfig(), before=GraphDef)
    assert caplog.text.count("number 1999") == 1
    assert len(host.current().said) <= 1024


def test_of_thousands_of_plans_that_change_nothing_the_latest_are_remembered(caplog):
    caplog.set_level("INFO", logger="absl")
    for number in [*range(2000), 1999]:
        plan = Plan((), "bfloat16", graph=f"step_{number}")
        rewrite = Rewrite(GraphDef(), plan, changed=False)
        arriving_graphs._record(rewrite, 0.0, AmpConfig())
    assert caplog.text.count("step_1999:") == 1
    assert len(host.current().said) <= 1024
