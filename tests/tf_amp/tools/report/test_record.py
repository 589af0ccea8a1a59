"""A report reads what tf-amp writes, whatever kind it is, and refuses the rest."""

import dataclasses
import json
import math
import re

import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.planning.draft import Outcome
from grappler_pass.planning.plan import Plan
from tf_amp.errors import UnreadableRecordError
from tf_amp.tools.job_page import (
    JobRecord,
    html_from_record,
    record_from_path,
    sections_of_runs,
)


@pytest.fixture(autouse=True)
def switched_on(disabled_afterwards):
    """Plan for a device that has units for bfloat16."""


def traced(opt_level, cubed=False):
    tf_amp.enable(device_profile="cpu-avx512-bf16", opt_level=opt_level)

    @tf.function
    def step(x):
        return tf.nn.relu(x @ x) @ x if cubed else tf.nn.relu(x @ x)

    return step.get_concrete_function(tf.TensorSpec((256, 256)))


@pytest.fixture(scope="module")
def texts():
    """One file of each kind, by name."""
    function = traced("O2", cubed=True)
    plan = tf_amp.explain(function)
    return {
        "1.plan.json": plan.to_json(),
        "prediction.json": f"[{tf_amp.explain(function, measure=True).to_json()}]",
        "verification.json": tf_amp.verify(function, tf.ones((256, 256))).to_json(),
        "1.steps.json": json.dumps(
            {"graph": plan.graph, "is_faster": True, "ratio": 1.25, "pairs": 9}
        ),
        "else.json": '{"of": "somebody else"}',
    }


@pytest.fixture
def folder(tmp_path, texts):
    """A folder with these files."""
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_folder_is_read_whole_but_for_what_is_not_ours(folder):
    record = record_from_path(folder)
    assert len(record.plans) == 1 and len(record.predictions) == 1
    assert len(record.verifications) == 1 and record.compared[0].ratio == 1.25
    html = html_from_record(record)
    for text in ("1.25x", "Numbers of", "Predicted and measured times", "Not recorded"):
        assert text in html
    assert "1.25 times as fast as float32, measured in 9 pairs of its own steps" in html
    assert "Its numbers are verified against float32." in html


@pytest.mark.parametrize(("is_faster", "end"), [(True, "it"), (False, "float32")])
def test_what_steps_have_decided_is_in_doubt_no_more(folder, texts, is_faster, end):
    plan = Plan.from_json(texts["1.plan.json"])
    in_doubt = dataclasses.replace(plan, outcome=Outcome.OPEN.value)
    (folder / "1.plan.json").write_text(in_doubt.to_json())
    steps = {**json.loads(texts["1.steps.json"]), "is_faster": is_faster}
    (folder / "1.steps.json").write_text(json.dumps(steps))
    found = [each for each in record_from_path(folder).plans if each.outcome]
    assert [each.outcome for each in found] == [
        "steps have been compared: 1.25x as fast as float32 in 9 pairs, so that "
        f"{end} stays"
    ]
    (folder / "1.steps.json").unlink()
    assert Outcome.OPEN.value[1:] in html_from_record(record_from_path(folder))


def test_the_largest_error_is_on_top(folder):
    (found,) = record_from_path(folder).verifications
    small, large, lost = (
        dataclasses.replace(
            found.checks[0],
            name=name,
            mixed=dataclasses.replace(found.checks[0].mixed, relative=error),
        )
        for name, error in {"small": 1e-4, "large": 1e-2, "lost": math.nan}.items()
    )
    held = dataclasses.replace(found, checks=(small, large, lost))
    (section,) = (
        each
        for each in sections_of_runs(JobRecord("job", verifications=(held,)))
        if each.title.startswith("Numbers of")
    )
    assert [row[0] for row in section.table.rows] == ["lost", "large", "small"]
    assert section.figure.data[0].y == ("lost", "large", "small")
    assert section.figure.layout.yaxis.autorange == "reversed"


def test_of_the_steps_of_a_run_those_are_marked_that_were_skipped():
    scales = (1, 8.0, 0, ""), (2, 4.0, 1, "Exp"), (3, 4.0, 1, ""), (4, 2.0, 2, "")
    run = {"model": "net", "scales": scales}
    section, *_ = sections_of_runs(JobRecord("job", runs=(run,)))
    skipped = section.figure.data[1]
    assert (skipped.x, skipped.y) == ((2, 4), (4.0, 2.0))
    assert skipped.text == ("Exp", "origin not known")
    assert section.text.startswith("2 steps skipped;")
    once, *_ = sections_of_runs(JobRecord("job", runs=(run | {"scales": scales[:2]},)))
    assert once.text.startswith("1 step skipped;")


def test_a_job_beside_another_shows_whose_types_differ():
    low, kept = tf_amp.explain(traced("O2")), tf_amp.explain(traced("O0"))
    html = html_from_record(JobRecord("now", (low,)), JobRecord("before", (kept,)))
    assert "Beside before" in html and "float32 to bfloat16" in html


def test_of_the_plans_of_a_function_the_one_that_changes_types_leads():
    low, kept = tf_amp.explain(traced("O2")), tf_amp.explain(traced("O0"))
    other = dataclasses.replace(kept, graph="other")
    html = html_from_record(JobRecord("job", (kept, low, other)))
    titles = re.findall(r"<h2>(.*?)</h2>|<summary><h3>(.*?)</h3>", html)
    assert [first or second for first, second in titles][:6] == [
        "step", "All graphs", "other", "Details", "Other graphs", "step, another plan",
    ]  # fmt: skip
    assert html.index("Float32 against the plan") < html.index("<h2>All graphs")


_OF_A_PLAN = "it has the fields of a plan, but not what tf-amp writes into them."
_OF_STEPS = '{"graph": "step", "is_faster": true, "ratio": "x", "pairs": 1}'


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        *(
            (f'{{"decisions": {each}, "low_dtype": "bfloat16"}}', _OF_A_PLAN)
            for each in ("3", "[3]", '[{"slot": []}]')
        ),
        (_OF_STEPS, "it has the fields of a comparison of steps, but not what tf-amp "),
        ('{"decisions": [], "low_dtype"', "it is cut off, or no JSON"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
    ids=range(6),
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path, text, wrong):
    path = tmp_path / "1.plan.json"
    path.write_text(text)
    for read in (path, tmp_path):
        with pytest.raises(UnreadableRecordError) as raised:
            record_from_path(read)
        assert f"{path} is no plan" in str(raised.value)
        assert wrong in str(raised.value)


def test_a_folder_without_a_file_of_ours_says_how_to_have_some(tmp_path):
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(UnreadableRecordError, match="TF_AMP_LOG=FOLDER"):
        record_from_path(tmp_path)


def test_a_damaged_file_is_left_out_of_a_folder_and_named(folder):
    (folder / "2.plan.json").write_text('{"decisions": [], "low_dtype"')
    (folder / "numbers.json").write_text("loss 0.25\n[]")
    record = record_from_path(folder)
    assert len(record.plans) == 1
    cut_off, foreign, numbers = record.left_out
    assert (
        "2.plan.json is no plan" in cut_off and "it is cut off, or no JSON" in cut_off
    )
    assert "else.json" in foreign and "it has the fields of" in foreign
    assert "numbers.json" in numbers
    html = html_from_record(record)
    assert "Left out" in html and "2.plan.json" in html
