"""The plans that callbacks collect during one run of `fit`."""

from __future__ import annotations

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.plan import Plan
from keras_callbacks.summaries import PlanWatch
from tf_amp.config.amp_config import AmpConfig
from tf_amp.rewriting import arriving_graphs, host


def test_of_thousands_of_retraces_the_longest_and_the_latest_plans_are_kept() -> None:
    watch = PlanWatch()
    watch.role = "train"
    watch.start()
    for number in range(2000):
        seconds = 1.0 if number == 7 else 1e-3
        plan = Plan((), "bfloat16", graph=f"step_{number}", seconds_before=seconds)
        rewrite = Rewrite(GraphDef(), plan, changed=True)
        arriving_graphs._record(rewrite, 0.0, AmpConfig())
    watch.stop()
    kept = [watched.plan.graph for watched in watch.plans if watched.role == "train"]
    assert kept == ["step_7", *(f"step_{n}" for n in range(1745, 2000))]


def test_a_run_is_watched_to_its_end_though_mixed_precision_is_disabled() -> None:
    watch = PlanWatch()
    watch.start()
    for name in ("before", "after", "later"):
        plan = Plan((), "bfloat16", graph=name)
        rewrite = Rewrite(GraphDef(), plan, changed=True)
        arriving_graphs._record(rewrite, 0.0, AmpConfig())
        host.forget()
        if name == "after":
            watch.stop()
    assert [watched.plan.graph for watched in watch.plans] == ["before", "after"]
