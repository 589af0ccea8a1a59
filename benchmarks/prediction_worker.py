"""One process of the comparison: predict a model's steps, then run them in turn.

Started by ``benchmarks.prediction``; prints one line of JSON per mode.
"""

import argparse
import dataclasses
import json
import time
from statistics import median

from tensorflow.core.framework.graph_pb2 import GraphDef

import tf_amp
from benchmarks.capture_graphs import CapturedGraph, capture
from benchmarks.catalog import entry
from benchmarks.prediction import Figures
from benchmarks.steps import Step, build_model, seconds_of, step_of
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import draft_graph
from grappler_pass.planning.plan import Plan
from tf_amp.config import scope_registry
from tf_amp.rewriting import graph_settings
from tf_amp.tracing.stamps import current_config

_WARM_STEPS = 3
_FEWEST_PAIRS = 5


def main() -> None:
    """Compare the modes of the model named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--modes", default="train,infer")
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    model = build_model(entry(options.model))
    # Inference first: a table that was trained by rows is copied whenever it is read.
    for mode in sorted(options.modes.split(",")):
        figures = compare(model, options.model, mode, seconds=options.seconds)
        print(json.dumps(dataclasses.asdict(figures)))


def compare(model: object, name: str, mode: str, *, seconds: float) -> Figures:
    """Predict a step in both precisions, and time it in both."""
    tf_amp.disable()
    float32 = step_of(model, entry(name), mode)
    plain = capture(float32)
    tf_amp.enable()
    # Some rewrites are done where a program is traced.
    traced = capture(step_of(model, entry(name), mode))
    tf_amp.disable()
    tf_amp.enable()
    mixed_plan = _planned(traced)
    before, after = _planned(plain).seconds_before, mixed_plan.seconds_after
    low_slots = sum(decision.is_low for decision in mixed_plan.decisions)
    # What is in doubt would be compared, and some of its steps were float32.
    tf_amp.enable(tune="off")
    mixed = step_of(model, entry(name), mode)
    plans = len(tf_amp.plans())
    mixed()
    return Figures(
        model=name,
        mode=mode,
        predicted=(before, after),
        measured=_time(float32, mixed, seconds=seconds),
        low_slots=low_slots,
        applied=len(tf_amp.plans()) > plans,
    )


def _planned(graph: CapturedGraph) -> Plan:
    """Plan as the program will."""
    graph_def = GraphDef.FromString(graph.graph_def)
    scope = scope_registry.RegisteredScope("benchmark", current_config())
    return draft_graph(
        graph_def,
        Item(fetch=graph.fetch, preserve=graph.preserve),
        graph_settings.settings_for(scope, graph_def),
        shapes=lambda: graph.shapes,
        name="step",
    ).plan


def _time(float32: Step, mixed: Step, *, seconds: float) -> tuple[float, float]:
    """Return median seconds of both steps, run in turn."""
    for _ in range(_WARM_STEPS):
        seconds_of(float32)
        seconds_of(mixed)
    begin = time.perf_counter()
    pairs: list[tuple[float, float]] = []
    while len(pairs) < _FEWEST_PAIRS or time.perf_counter() - begin < seconds:
        pairs.append((seconds_of(float32), seconds_of(mixed)))
    return median(each for each, _ in pairs), median(each for _, each in pairs)


if __name__ == "__main__":
    main()
