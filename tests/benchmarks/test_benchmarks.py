"""The models under `tf-amp bench`, and how their report reads."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from benchmarks import first_step, first_steps, gradients, live_sets, memory
from benchmarks.benches import bench_of, job_of
from benchmarks.capture_graphs import CapturedGraph
from benchmarks.casts import Casts, casts_in
from benchmarks.catalog import DEMO_MODELS, ENTRIES, MODES, variant
from benchmarks.context import Context, context_of
from benchmarks.executed import count_step_nodes
from benchmarks.machine import Machine
from benchmarks.pass_report import GraphSize, PassFigures
from benchmarks.processes import worker_environment
from benchmarks.replicate import replicated
from benchmarks.report import markdown
from benchmarks.results import (
    BESIDE,
    keep_models,
    keep_table,
    kept_models,
    write_results,
)
from tests.command_lines import FORKING
from tests.forking import run_forked_command
from tests.processes import folder_that_hides
from tests.text_graph import graph_from_text
from tf_amp.tools.bench.journal import OpCounts, Sample

WITH_LOW_UNITS = Machine("test", "avx512_bf16", ("avx512_bf16",), 2)


def sample_of(variant_name, seconds, *, number=0, values=(1.0, 2.0), low=0):
    return Sample(
        variant(variant_name).method,
        256,
        number,
        step_seconds=(9.0, seconds, seconds),
        first_step_seconds=5.0,
        peak_bytes=1,
        values=tuple(values),
        ops=OpCounts(total=9, low=low, casts=low, onednn=0),
    )


def failed(variant_name, failure):
    return Sample(variant(variant_name).method, 256, 0, failure=failure)


def told(*samples):
    return markdown([bench_of("mlp", "train", samples)], WITH_LOW_UNITS)


def test_a_row_is_measured_and_added_to_those_of_other_models(tmp_path):
    output, raw = tmp_path / "results.md", tmp_path / "raw"
    earlier = [sample_of("float32", 0.1)]
    others = {(name, mode): earlier for name in ("mlp", "tiny_mlp") for mode in MODES}
    keep_models(others, context_of("python -m benchmarks", rounds=1), raw)
    command = ["-m", "benchmarks", "--add", "--models", "tiny_mlp"]
    command += ["--modes", "infer", "--variants", "float32,builtin,untuned"]
    command += ["--rounds=1", "--seconds=0.05", "--output", str(output)]
    done = run_forked_command(command, before=FORKING)
    assert done.code == 0, done.err
    assert "benchmarks.steps:tiny_mlp, infer" in done.out
    text = output.read_text()
    assert "| MLP | train | 1 | 100 |" in text and "| tiny MLP | infer |" in text
    assert "`python -m benchmarks`, then `python -m benchmarks --add" in text
    assert "failed" not in text and "WRONG" not in text and "warned" not in text
    samples, _ = kept_models(raw)
    measured = samples.pop(("tiny_mlp", "infer"))
    methods = ["float32", "float32 again", "tensorflow", "tf-amp:TUNE=off"]
    assert [each.method for each in measured] == methods
    assert all(each.first_step_seconds > each.seconds > 0.0 for each in measured)
    assert measured[0].ops.total > 0 == measured[0].ops.low
    assert len(measured[0].values) == 256
    assert [each for found in samples.values() for each in found] == [
        replace(earlier[0], step_seconds=(0.1,))
    ] * 3


def test_table_shows_speed_up_with_the_spread_of_the_rounds():
    samples = [
        sample_of("float32", 0.100),
        sample_of("ours", 0.050, low=3),
        sample_of("float32", 0.120, number=1),
        sample_of("ours", 0.040, number=1, low=3),
    ]
    text = told(*samples)
    assert "| model | mode | rounds | float32 ms | tf-amp | against best |" in text
    # With what the peers would have taken nobody knows who is best.
    assert "| MLP | train | 2 | 110 | 2.44 (2.00-3.00) | - |" in text
    assert "times as long as the best other" not in text


def test_table_says_where_a_variant_ran_no_16_bit_operation():
    samples = [sample_of(name, 0.1) for name in ("float32", "again", "builtin")]
    text = told(*samples)
    assert (
        "| MLP | train | 1 | 100 | 1.00 (1.00-1.00) | 1.00 (1.00-1.00) no-op | - |"
        in text
    )


def test_remarks_name_what_is_slow_wrong_or_failed():
    samples = [
        sample_of("float32", 0.1),
        sample_of("keras", 0.1, low=1, values=(1.0, 3.0)),
        replace(sample_of("ours", 0.2, low=1), warning="graph 'g' stays float32: why"),
        failed("builtin", "exit status 1: no memory"),
    ]
    text = told(*samples)
    assert "- MLP train: tf-amp takes 2.00 times as long" in text
    assert "- MLP train: Keras policy is off by 0.45" in text
    assert "- MLP train: TensorFlow failed, exit status 1: no memory." in text
    assert "- MLP train: tf-amp warned, graph 'g' stays float32: why" in text
    assert "WRONG" in text and "| failed |" in text


def test_the_mean_against_the_better_peer_of_each_row_is_told():
    samples = [
        *(sample_of("float32", 0.4), sample_of("keras", 0.2, low=1)),
        *(sample_of("builtin", 0.3, low=1), sample_of("ours", 0.1, low=1)),
    ]
    text = told(*samples)
    assert "tf-amp is 2.00 times as fast as the better peer" in text
    assert "| 0.50 |" in text


@pytest.mark.parametrize("left_out", ["keras", "builtin"])
def test_no_peer_is_the_better_one_where_the_other_was_not_run(left_out):
    both = {"keras": 0.2, "builtin": 0.15}
    rows = {"float32": 0.4, "ours": 0.1, **both}
    bench = bench_of("mlp", "train", [sample_of(*each, low=1) for each in rows.items()])
    assert bench.against_peers == pytest.approx(0.1 / 0.15)
    del rows[left_out]
    bench = bench_of("mlp", "train", [sample_of(*each, low=1) for each in rows.items()])
    assert bench.against_peers is None and bench.against_best is None
    assert "better peer" not in markdown([bench], WITH_LOW_UNITS)


def test_cells_of_other_rounds_than_their_row_are_marked():
    samples = [
        *(sample_of("float32", 0.4, number=number) for number in range(3)),
        *(sample_of("again", 0.4, number=number) for number in range(3)),
        *(sample_of("ours", 0.2, number=number, low=1) for number in range(2)),
    ]
    cells = "3 | 400 | 1.00 (1.00-1.00) | 2.00 (2.00-2.00) [2] | -"
    assert f"| MLP | train | {cells} |" in told(*samples)


def test_not_a_number_counts_as_wrong():
    wrong = sample_of("ours", 0.1, values=(1.0, float("nan")))
    bench = bench_of("mlp", "train", [sample_of("float32", 0.1), wrong])
    assert bench.is_wrong(bench.row("ours"))


def test_a_model_whose_every_process_failed_is_still_reported():
    text = told(failed("float32", "ended by SIGKILL"))
    assert "MLP train: float32 failed, ended by SIGKILL." in text


def test_workers_get_no_switch(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION", "float16")
    monkeypatch.setenv("TF_AMP_LOG", "somewhere")
    plain = worker_environment()
    switches = [n for n in plain if n.startswith(("TF_AMP", "TF_ENABLE_AUTO"))]
    assert switches == ["TF_AMP_VERBOSE"]


@pytest.mark.parametrize("name", [each.name for each in ENTRIES])
def test_every_model_of_the_catalog_is_a_function_for_the_bench(name):
    job = job_of(name, "infer", ("float32", "float32 again"))
    module, _, function = job.target.name.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert not hasattr(importlib.import_module(module), f"{name}_unknown")


def test_unknown_model_is_named_with_the_known_ones():
    done = run_forked_command(["-m", "benchmarks", "--models", "vgg"])
    assert done.code == 2
    assert "unknown name 'vgg'; known: resnet50" in done.err


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


def test_results_hold_the_models_and_the_other_sections(tmp_path):
    context = Context(WITH_LOW_UNITS, (("tensorflow", "2"),), "today", "a command", 1)
    keep_models({("mlp", "train"): [sample_of("float32", 0.1)]}, context, tmp_path)
    keep_table("pass_time", "told of the pass", {}, context, tmp_path)
    write_results(tmp_path / "R.md", tmp_path)
    text = (tmp_path / "R.md").read_text()
    assert "| MLP | train | 1 | 100 | - |" in text
    assert text.index("## Models") < text.index("## The pass itself")
    assert text.count("kind **avx512_bf16**") == 2 and "told of the pass" in text


def test_variants_measured_beside_the_others_are_a_column_over_their_own_float32(
    tmp_path,
):
    context = Context(WITH_LOW_UNITS, (("tensorflow", "2"),), "today", "a command", 1)
    compared = [sample_of("float32", 0.1), sample_of("ours", 0.05, low=1)]
    keep_models({("mlp", "train"): compared}, context, tmp_path)
    beside = [sample_of("float32", 0.3), sample_of("fused", 0.2)]
    later = replace(context, command="another", revision="0123456789ab")
    keep_models({("mlp", "train"): beside}, later, tmp_path, BESIDE)
    write_results(tmp_path / "R.md", tmp_path)
    text = (tmp_path / "R.md").read_text()
    assert "| tf-amp | fused float32 | against best |" in text
    cells = "2.00 (2.00-2.00) | 1.50 (1.50-1.50) | -"
    assert f"| MLP | train | 1 | 100 | {cells} |" in text
    assert "- Beside them, today, `another`, revision 0123456789ab\n" in text


def test_the_figures_of_the_pass_are_told_by_size_of_the_graph():
    sizes = (
        GraphSize(10_000, 2_000_000, 7, 2.5, 1.0, 0.9, 1e6, 9e6, (("view", 0.25),)),
        GraphSize(20_000, 4_000_000, 14, 6.0, 2.2, 2.1, 1e6, 1e7, (("view", 0.5),)),
    )
    text = PassFigures(sizes, ((1.0, 3.0), (1.5, 2.9))).markdown()
    assert "| 10,000 | 2.0 | 2.50 | 1.00 | 0.90 | 1.00 | 8 | 4.0 | 7 |" in text
    assert "| 20,000 | 4.0 | 6.00 | 2.20 | 2.10 | 1.02 | 9 | 2.2 | 14 |" in text
    assert "Stages at 10,000 nodes: view 0.25 s." in text
    assert "a difference of the medians of +0.20 s." in text


def test_a_section_keeps_its_samples_and_shows_the_revision_where_there_is_one(
    tmp_path,
):
    context = Context(WITH_LOW_UNITS, (("numpy", "2"),), "today", "a command", 1)
    at_revision = replace(context, revision="0123456789ab")
    keep_table("rows", "told", {"a": [0.12345678]}, at_revision, tmp_path)
    keep_table("xla", "told", [], context, tmp_path)
    # As it was written before revisions were.
    old = json.loads((tmp_path / "xla.json").read_text())
    del old["context"]["revision"], old["samples"]
    (tmp_path / "xla.json").write_text(json.dumps(old))
    write_results(tmp_path / "R.md", tmp_path)
    text = (tmp_path / "R.md").read_text()
    assert "`a command`, 1 rounds, revision 0123456789ab\n\ntold" in text
    assert "`a command`, 1 rounds\n\ntold" in text
    kept = json.loads((tmp_path / "rows.json").read_text())
    assert kept["samples"] == {"a": [0.123457]}


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


def test_the_slowest_steps_in_a_row_leave_out_what_optimizes():
    float32 = first_steps.Training((5.0, *[0.1] * 50), (0,))
    # Four of twenty take twice as long, all of them in one row of twenty.
    seconds = [9.0, *[0.1] * 29, 7.0, *[0.2] * 4, *[0.1] * 26, *[0.05] * 20]
    ours = first_steps.Training(tuple(seconds), (0, 30))
    each = first_steps.Round(float32, ours)
    assert each.slowest(ours) == pytest.approx(20 / 24)
    assert each.slowest(float32) == pytest.approx(1.0)
    assert each.last == pytest.approx(2.0)
    assert ours.optimizing(0.1) == pytest.approx(8.9 + 6.9)
    text = first_steps.markdown({"mlp": [each] * 3})
    assert "| 0.83 (0.83-0.83) | 2.00 (2.00-2.00) | 15.8 |" in text
    assert "- 0 of 1 models have at least 0.95" in text


def test_steps_that_may_be_compiled_are_held_against_others_by_tens():
    without = first_steps.Training((4.0, *[0.2] * 60), (0,))
    seconds = [5.0, *[0.2] * 10, 9.0, *[0.1] * 40, *[0.05] * 10]
    compiled = first_steps.Training(tuple(seconds), (0, 11))
    cells = first_steps.compiled_cells("mlp", "on", [without] * 3, [compiled] * 3)
    ratios = [cell.partition(" ")[0] for cell in cells[3:-1]]
    assert ratios == ["1.25", "1.00", "0.50", "0.50", "0.50", "0.50", "0.25"]
    assert cells[1:3] == ("on", "62") and cells[-1] == "13.8"


def test_the_first_step_is_told_with_its_share_for_the_demo_too():
    first = {"float32": 2.0, "A/A": 1.98, "tuning off": 2.5, "empty cache": 3.5}
    figures = {
        (kind, model, "train"): [
            first_step.Figure(
                first=first.get(kind, 2.6),
                later=0.1 if low_ops and "cache" in kind else 0.2,
                low_ops=low_ops,
            )
        ]
        for model, low_ops in (("demo_text", 7), ("mlp", 0))
        for kind, _ in first_step._KINDS
    }
    text = first_step.markdown(figures)
    row = "train | 2.00 | -1% | +25% | +75% | +30%"
    assert f"| demo: text | {row} | 7 | 15 |" in text
    assert f"| MLP | {row} | 0 | - |" in text
    assert "- empty cache: +75.0% in the median of 2 rows, +75.0% of the 1" in text


def test_rows_that_are_slower_than_float32_are_counted():
    seconds = {"float32": (1.0, 1.0), "again": (1.0, 0.9), "ours": (1.25, 1.25)}
    samples = [
        sample_of(name, each, number=number)
        for name, rounds in seconds.items()
        for number, each in enumerate(rounds)
    ]
    text = told(*samples)
    assert "- tf-amp: 1 of 1 medians under 0.98 times as fast as float32; the" in text
    assert "- A/A: 0 of 1 medians under 0.98" in text and "round is 1.00" in text


def test_of_each_process_the_median_of_its_later_steps_is_kept(tmp_path):
    many = sample_of("ours", 0.5, values=[1.23456789] * 1024, low=2)
    gone = failed("keras", "ended by SIGKILL")
    context = context_of("python -m benchmarks", rounds=1)
    samples = {("mlp", "infer"): [many, gone], ("lstm", "train"): [many]}
    keep_models(samples, context, tmp_path)
    kept, where = kept_models(tmp_path)
    assert where == context
    assert [*kept] == [("lstm", "train"), ("mlp", "infer")]
    short = replace(many, step_seconds=(0.5,), values=(1.23457,) * 256)
    assert kept["mlp", "infer"] == (short, gone)


def test_gradients_are_held_against_the_better_peer_and_against_rounding_once():
    float32 = {"0.kernel": np.array([3.0, 4.0]), "1.bias": np.array([1e-9])}
    turned = {"0.kernel": np.array([4.0, -3.0]), "1.bias": np.array([-1.0])}
    error, cosine, worst = gradients.compared(turned, float32)
    assert error == pytest.approx((51 / 25) ** 0.5)
    # What is next to nothing has no direction.
    assert (cosine, worst) == pytest.approx((0.0, 0.0), abs=1e-9)
    assert gradients.compared(float32, float32) == (0.0, 1.0, 1.0)
    errors = {"again": 0.0, "floor": 0.01, "keras": 0.4, "builtin": 0.2, "ours": 0.02}
    figures = {name: (each, 1.0, 1.0) for name, each in errors.items()}
    text = gradients.markdown({"mlp": figures})
    assert "| MLP | error | 0 | 0.01 | 0.4 | 0.2 | 0.02 |" in text
    assert "for 0 of 1 models." in text and "2 to 2 times that of" in text


@pytest.mark.long
def test_memory_is_held_against_the_policy_and_tensors_keep_to_a_limit(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(folder_that_hides()))
    there = memory.Figures(1, 1, 0.5)
    rows = {
        ("bert", name): memory.Row(
            memory.Figures(10, allocated, 1.0), 1500, batch, there, seconds
        )
        for name, allocated, batch, seconds in (
            ("float32", 130, 8, ()),
            ("keras", 100, 8, ()),
            ("builtin", 100, 10, ()),
            ("untuned", 120, 9, (2.0, 2.0, 2.0)),
            ("save", 60, 11, (2.1, 2.0, 2.2)),
        )
    }
    text = memory.markdown(rows)
    assert "| BERT-like encoder | tf-amp | 0 | 1.20 | 1500 | 9 | 1.12 | 18 |" in text
    assert "- BERT-like encoder: more than 1.05 times" in text
    assert "take 0.50 times as much as by default, and a step 1.05 times as" in text
    assert "(1.00 to 1.10). The largest batch is 11, that of the best peer 10" in text
    assert memory._run("tiny_mlp", "float32", 32, None).allocated > 0
    assert memory._run("tiny_mlp", "float32", 2 * 10**5, 50) is None


def test_what_a_step_of_two_threads_holds_at_once_is_predicted(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(folder_that_hides()))
    monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "2")
    # TensorFlow's other allocator on CPUs keeps no statistics.
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    found = live_sets.measured("mlp", "float32")
    # The order of what is ready depends on what kernels took before.
    for measured in found.measured:
        assert 0.8 * measured < found.predicted < 1.2 * measured
    assert min(found.allocated) >= max(found.measured)


def test_predicted_memory_is_held_against_the_measured():
    found = {
        ("bert", "float32"): live_sets.Memory(100 * 10**6, (99 * 10**6,), (10**8,)),
        ("bert", "untuned"): live_sets.Memory(110 * 10**6, (80 * 10**6,), (10**8,)),
    }
    text = live_sets.markdown(found)
    row = "| BERT-like encoder | tf-amp | 110 | 80 to 80 | 1.38 | 100 | 1.10 | 0.81 |"
    assert row in text
    assert "- 1 of 2 predictions are within 10% of what is measured, but not" in text
    assert "1.05 times what float32 holds, but not of BERT-like encoder." in text


@pytest.mark.parametrize("model", DEMO_MODELS, ids=str)
def test_the_demos_models_can_be_measured(model):
    module = importlib.import_module(model.module_name)
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
