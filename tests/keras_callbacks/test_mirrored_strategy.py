"""Two replicas train as one device does, however their gradients travel."""

import pytest

from tests import mirrored_sections as sections
from tests.mirrored_programs import sections_of

OF_KERAS_3 = {
    # First: it says what was made before.
    "late": sections.LATE,
    "bad arguments are named": sections.ARGUMENTS,
    "one": sections.ONE_DEVICE,
    "only gradients travel in 16 bits": sections.OTHERS,
    "eager steps are exchanged too": sections.EAGER,
    "disabling undoes the hook until the strategy runs again": sections.DISABLED,
}
OF_EITHER = {
    "fit and loops equal one device at the same global batch": sections.TRAINING,
    "sparse gradients are exchanged as before": sections.SPARSE,
    "what is written is the model and loads without a strategy": sections.SAVED,
    "a variable of another scope cannot be trained": sections.FOREIGN,
}
# Last: weights that are saved would have the loss scale beside them.
SCALED = {
    "the pass leaves the exchange alone": sections.REWRITTEN,
    "an overflow on either replica skips the step on both": sections.OVERFLOW,
}
PROGRAMS = {"keras": {**OF_KERAS_3, **OF_EITHER, **SCALED}, "tf_keras": OF_EITHER}


@pytest.fixture(scope="module")
def printed():
    """What is logged in each section, and what does not hold in it, by Keras."""
    return {kit: sections_of(programs, kit) for kit, programs in PROGRAMS.items()}


@pytest.mark.parametrize(
    ("kit", "section"),
    [(kit, name) for kit, programs in PROGRAMS.items() for name in programs],
)
def test_two_replicas_do_as_one_device(printed, kit, section):
    lines = printed[kit][section]
    told = [line for line in lines if not line.startswith(("LOGGED", "none before"))]
    assert not told, "\n".join(told)


def test_one_device_works_and_says_that_there_is_nothing_to_reduce(printed):
    said = "CPU:1: there is nothing to reduce."
    assert any(said in line for line in printed["keras"]["one"])


def test_a_strategy_made_after_a_model_says_so(printed):
    lines = printed["keras"]["late"]
    place = lines.index("none before")
    said = "made before the strategy: kernel:0 (3, 2). They stay on one device"
    assert not any("made before" in line for line in lines[:place])
    assert any(said in line for line in lines[place:])
