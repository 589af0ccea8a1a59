"""The benchmark's driver on its smallest model, and how its report reads."""

import importlib
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from benchmarks import first_step
from benchmarks.capture_graphs import CapturedGraph
from benchmarks.casts import Casts, casts_in
from benchmarks.catalog import DEMO_MODELS, variant
from benchmarks.context import Context
from benchmarks.driver import Schedule, worker_environment
from benchmarks.executed import count_step_nodes
from benchmarks.machine import Machine
from benchmarks.pass_report import GraphSize, PassFigures
from benchmarks.records import Measurement, Run, run_from_json, run_to_json
from benchmarks.replicate import replicated
from benchmarks.report import markdown
from benchmarks.results import keep_pass_figures, keep_runs, write_results
from benchmarks.summary import rows_from_runs
from tests.processes import ROOT, folder_that_hides
from tests.text_graph import graph_from_text
from tf_amp.tools.bench.worker.executed_ops import OpCounts

WITH_LOW_UNITS = Machine("test", "avx512_bf16", ("avx512_bf16",), 2)


def run_of(variant_name, seconds, *, number=0, values=(1.0, 2.0), low=0):
    ops = OpCounts(total=9, low=low, casts=low, onednn=0)
    measured = Measurement("train", (seconds, seconds, 9.0), tuple(values), ops)
    return Run("mlp", variant_name, number, (measured,), peak_bytes=1)


@pytest.mark.slow
def test_driver_measures_the_tiny_mlp_from_end_to_end(tmp_path):
    output = tmp_path / "results.md"
    command = [sys.executable, "-m", "benchmarks", "--models", "tiny_mlp"]
    command += ["--variants", "float32,builtin", "--rounds", "1", "--seconds", "0.05"]
    done = subprocess.run(
        [*command, "--output", str(output)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder_that_hides())},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    text = output.read_text()
    assert "| tiny MLP | train |" in text and "| tiny MLP | infer |" in text
    assert "failed" not in text and "WRONG" not in text
    assert (tmp_path / "raw" / "models.json").exists()


def test_table_shows_speed_up_with_the_spread_of_the_rounds():
    runs = [
        run_of("float32", 0.100),
        run_of("ours", 0.050, low=3),
        run_of("float32", 0.120, number=1),
        run_of("ours", 0.040, number=1, low=3),
    ]
    text = markdown(rows_from_runs(runs), WITH_LOW_UNITS)
    assert "| model | mode | float32 ms | tf-amp | against best |" in text
    assert "| MLP | train | 110 | 2.44 (2.00-3.00) | 0.41 |" in text
    assert "Nothing fell behind." in text


def test_table_says_where_a_variant_ran_no_16_bit_operation():
    runs = [run_of("float32", 0.1), run_of("again", 0.1), run_of("builtin", 0.1)]
    text = markdown(rows_from_runs(runs), WITH_LOW_UNITS)
    assert (
        "| MLP | train | 100 | 1.00 (1.00-1.00) | 1.00 (1.00-1.00) no-op | - |" in text
    )


def test_remarks_name_what_is_slow_wrong_or_failed():
    runs = [
        run_of("float32", 0.1),
        run_of("keras", 0.1, low=1, values=(1.0, 3.0)),
        replace(run_of("ours", 0.2, low=1), warning="graph 'g' stays float32: why"),
        Run("mlp", "builtin", 0, failure="exit status 1: no memory"),
    ]
    text = markdown(rows_from_runs(runs), WITH_LOW_UNITS)
    assert "- MLP train: tf-amp takes 2.00 times as long" in text
    assert "- MLP train: Keras policy is off by 0.45" in text
    assert "- MLP: TensorFlow failed, exit status 1: no memory." in text
    assert "- MLP: tf-amp warned, graph 'g' stays float32: why" in text
    assert "WRONG" in text and "| failed |" in text


def test_the_mean_against_the_better_peer_of_each_row_is_told():
    runs = [
        *(run_of("float32", 0.4), run_of("keras", 0.2, low=1)),
        *(run_of("builtin", 0.3, low=1), run_of("ours", 0.1, low=1)),
    ]
    text = markdown(rows_from_runs(runs), WITH_LOW_UNITS)
    assert "tf-amp is 2.00 times as fast as the better peer" in text


def test_not_a_number_counts_as_wrong():
    runs = [run_of("float32", 0.1), run_of("ours", 0.1, values=(1.0, float("nan")))]
    (row,) = rows_from_runs(runs)
    assert row.is_wrong(row.cell("ours"))


def test_a_model_whose_every_process_failed_is_still_reported():
    rows = rows_from_runs([Run("mlp", "float32", 0, failure="exit status -9: ")])
    assert "MLP: float32 failed" in markdown(rows, WITH_LOW_UNITS)


def test_runs_travel_as_json():
    run = run_of("ours", 0.5, low=2)
    assert run_from_json(run_to_json(run)) == run


def test_variants_take_turns_and_each_round_starts_with_another():
    schedule = Schedule(("mlp",), ("infer",), ("float32", "keras", "ours"), 2, 1.0)
    names = [turn.variant.name for turn in schedule.turns()]
    assert names == ["float32", "keras", "ours", "keras", "ours", "float32"]
    assert len(schedule) == len(names)


def test_workers_get_no_switch_but_that_of_their_variant(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION", "float16")
    monkeypatch.setenv("TF_AMP_LOG", "somewhere")
    plain = worker_environment(variant("float32"))
    assert not [name for name in plain if name.startswith(("TF_AMP", "TF_ENABLE_AUTO"))]
    ours = worker_environment(variant("ours"))
    assert ours["TF_ENABLE_AUTO_MIXED_PRECISION"] == "1"


def test_unknown_model_is_named_with_the_known_ones():
    command = [sys.executable, "-m", "benchmarks", "--models", "vgg"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown name 'vgg'; known: resnet50" in done.stderr


def test_copies_of_a_graph_are_independent():
    graph = GraphDef()
    graph.node.add(name="a", op="NoOp")
    reader = graph.node.add(name="b", op="NoOp", input=["a:1", "^a"])
    reader.attr["_class"].list.s.extend([b"loc:@a", b"other"])
    copies = replicated(graph, 2)
    assert [node.name for node in copies.node] == [
        *("copy0/a", "copy0/b"),
        *("copy1/a", "copy1/b"),
    ]
    assert list(copies.node[3].input) == ["copy1/a:1", "^copy1/a"]
    assert list(copies.node[3].attr["_class"].list.s) == [b"loc:@copy1/a", b"other"]


def test_results_hold_both_sections_read_back_from_the_raw_figures(tmp_path):
    context = Context(WITH_LOW_UNITS, (("tensorflow", "2"),), "today", "a command", 1)
    sizes = (
        GraphSize(10_000, 2_000_000, 7, 2.5, 1.0, 0.9, 1e6, 9e6, (("view", 0.25),)),
        GraphSize(20_000, 4_000_000, 14, 6.0, 2.2, 2.1, 1e6, 1e7, (("view", 0.5),)),
    )
    figures = PassFigures(sizes, ((1.0, 3.0), (1.5, 2.9)))
    keep_runs([run_of("float32", 0.1)], context, tmp_path)
    keep_pass_figures(figures, context, tmp_path)
    write_results(tmp_path / "R.md", tmp_path)
    text = (tmp_path / "R.md").read_text()
    assert "| MLP | train | 100 | - |" in text
    assert "| 10,000 | 2.0 | 2.50 | 1.00 | 0.90 | 1.00 | 8 | 4.0 | 7 |" in text
    assert "| 20,000 | 4.0 | 6.00 | 2.20 | 2.10 | 1.02 | 9 | 2.2 | 14 |" in text
    assert "Stages at 10,000 nodes: view 0.25 s." in text
    assert "a difference of the medians of +0.20 s." in text
    assert text.count("kind **avx512_bf16**") == 2


def test_casts_are_counted_with_their_readers_and_bytes():
    graph_def = graph_from_text(
        """
        x = Placeholder
        down = Cast(x) SrcT=float32 DstT=bfloat16
        ids = Cast(x) SrcT=float32 DstT=int32
        one = Relu(down) T=bfloat16
        two = Relu(down) T=bfloat16
        """
    )
    graph = CapturedGraph(b"", ("one", "two"), (), {"x": ((8, 4),)})
    assert casts_in(graph_def, graph) == Casts(1, 2, 1.0, 8 * 4 * 6 / 1e6)


def test_the_first_step_is_told_with_its_share_for_the_demo_too():
    seconds = {"float32": 2.0, "tuning off": 2.5, "empty database": 3.5}
    later = {"float32": 0.2, "empty database": 0.1}
    figures = {
        (kind, model, "train"): [(seconds.get(kind, 2.6), later.get(kind, 0.1))]
        for model in ("demo_text", "mlp")
        for kind, _ in first_step._KINDS
    }
    text = first_step.markdown(figures)
    row = "train | 2.00 | 2.50 | 3.50 | 2.60 | 1.00 | 50% | 0.10 | 5% | 15 |"
    assert f"| demo: text | {row}" in text and f"| MLP | {row}" in text
    assert "*share*" in text


@pytest.mark.parametrize("model", DEMO_MODELS, ids=str)
def test_the_demos_models_can_be_measured(model):
    module = importlib.import_module(f"benchmarks.models.{model.name}")
    generator = np.random.default_rng(0)
    inputs, targets = module.sample(generator, model.train_batch)
    assert len(inputs) == len(targets) == model.train_batch == model.infer_batch
    outputs = module.build()(inputs, training=False)
    assert np.isfinite(float(module.loss()(targets, outputs)))


def test_graphs_executed_between_two_counts_are_none_of_the_second():
    def step(products):
        def multiply(x):
            for _ in range(products):
                x = tf.tanh(x @ x)
            return x

        return lambda: tf.function(multiply)(tf.ones((4, 4)))

    few = count_step_nodes(step(2))
    step(200)()
    assert count_step_nodes(step(2)) == few < 200
