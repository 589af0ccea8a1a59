"""Two replicas train as one device does, however their gradients travel."""

import pytest

from tests import mirrored_sections as sections
from tests.mirrored_programs import sections_of
from tf_amp._tensorflow_private.graphs import CONVERT_TO_TFLITE


@pytest.fixture(scope="module", params=["keras", "tf_keras"])
def either_keras(request):
    """What two programs print that hold for either Keras."""
    programs = {
        "training": sections.TRAINING,
        "sparse": sections.SPARSE,
        "saved": sections.SAVED,
        "foreign": sections.FOREIGN,
    }
    return sections_of(programs, request.param) | {"keras": request.param}


@pytest.fixture(scope="module")
def printed():
    """What the other programs print."""
    programs = {
        "late": sections.LATE,
        "arguments": sections.ARGUMENTS,
        "one": sections.ONE_DEVICE,
        "others": sections.OTHERS,
        "eager": sections.EAGER,
        "disabled": sections.DISABLED,
        "rewritten": sections.REWRITTEN,
        "overflow": sections.OVERFLOW,
    }
    return sections_of(programs)


def without_warnings(lines):
    return [line for line in lines if not line.startswith("LOGGED")]


def test_fit_and_loops_equal_one_device_at_the_same_global_batch(either_keras):
    lines = without_warnings(either_keras["training"])
    *trained, first, before, after = lines
    by_fit, in_loop, both = ("True " * count for count in (3, 2, 5))
    assert trained == (
        [f"{both}1"]
        if either_keras["keras"] == "tf_keras"
        else [f"{by_fit}0", f"{in_loop}1", f"{by_fit}1"]
    )
    assert [first, before, after] == [
        "4 gradients on 2 replicas, per step",
        "  before  ReductionToOneDevice float32: 4 collectives, 0.006 MB",
        "  after   fused float16: 1 collectives, 0.003 MB (50.1% of the bytes)",
    ]


def test_sparse_gradients_are_exchanged_as_before(either_keras):
    assert without_warnings(either_keras["sparse"]) == [
        "True",
        "2 1",
        "  1 more, sparse or not float32, as before",
    ]


def test_what_is_written_is_the_model_and_loads_without_a_strategy(either_keras):
    assert without_warnings(either_keras["saved"]) == [
        "['latest.weights.h5'] 1",
        "True",
        "Sequential 0.0 0.0",
        "{'float32'}",
    ]


def test_a_variable_of_another_scope_cannot_be_trained(either_keras):
    assert without_warnings(either_keras["foreign"]) == ["True True"]


def test_an_overflow_on_either_replica_skips_the_step_on_both(printed):
    assert without_warnings(printed["overflow"]) == [
        "True True True 512 1",
        "True 1",
        "True True True 512 1",
        "True True True 256 2",
        "True 1",
    ]


def test_only_gradients_travel_in_16_bits(printed):
    assert (
        without_warnings(printed["others"])
        == ["4098.0 2049.0 [257.0, 2.0] [5.0, 5.0] 0"] * 2
    )


def test_the_pass_leaves_the_exchange_alone(printed):
    assert without_warnings(printed["rewritten"]) == ["True True 1"]


def test_eager_steps_are_exchanged_too(printed):
    assert without_warnings(printed["eager"]) == ["[[0.0, 3.0]] 1"]


def test_disabling_undoes_the_hook_until_the_strategy_runs_again(printed):
    in_place, again = without_warnings(printed["disabled"])
    assert in_place.endswith(f"set_model _do_run {CONVERT_TO_TFLITE.method}")
    assert "_all_reduce" not in in_place and again == "True 1"


def test_bad_arguments_are_named(printed):
    lines = without_warnings(printed["arguments"])
    unknown, twice, empty, word, size, devices = lines
    assert unknown == "devices: there is no GPU:7; TensorFlow sees CPU:0, CPU:1."
    assert twice.startswith(
        "devices: received CPU:0, /device:CPU:1, /cpu:0, where CPU:0 occurs twice"
    )
    assert "received an empty list" in empty
    assert word.startswith("all_reduce: received 'float12'; allowed are float32, ")
    assert size.startswith("mirrored_strategy: bucket_bytes=0; allowed are ints from 1")
    assert devices.index("CPU:1") < devices.index("CPU:0")


def test_one_device_works_and_says_that_there_is_nothing_to_reduce(printed):
    said = "CPU:1: there is nothing to reduce."
    assert any(said in line for line in printed["one"])
    assert printed["one"][-1] == "0.0 ()"


def test_a_strategy_made_after_a_model_says_so(printed):
    place = printed["late"].index("none before")
    said = "made before the strategy: kernel:0 (3, 2). They stay on one device"
    assert not any("made before" in line for line in printed["late"][:place])
    assert any(said in line for line in printed["late"][place:])
