"""Two replicas train as one device does, however their gradients travel."""

import functools

import pytest

from tests.mirrored_programs import SECTIONS, sections_of
from tests.printed_programs import texts_of

# Programs by title, of each Keras that a section is for.
PROGRAMS = {"keras": {}, "tf_keras": {}}
for mark, title, text in texts_of(SECTIONS):
    if mark == "==":
        kits, _, program = text.partition("\n")
        for kit in kits.removeprefix("for: ").split():
            PROGRAMS[kit][title] = program


@pytest.fixture(scope="module")
def printed():
    """What is logged in each section, and what does not hold in it, by Keras."""
    return functools.cache(lambda kit: sections_of(PROGRAMS[kit], kit))


@pytest.mark.parametrize(
    ("kit", "section"),
    [
        *(("keras", name) for name in PROGRAMS["keras"]),
        *(
            pytest.param("tf_keras", name, marks=pytest.mark.long)
            for name in PROGRAMS["tf_keras"]
        ),
    ],
)
def test_two_replicas_do_as_one_device(printed, kit, section):
    lines = printed(kit)[section]
    told = [line for line in lines if not line.startswith(("LOGGED", "none before"))]
    assert not told, "\n".join(told)


def test_one_device_works_and_says_that_there_is_nothing_to_reduce(printed):
    said = "CPU:1: there is nothing to reduce."
    assert any(said in line for line in printed("keras")["one"])


def test_a_strategy_made_after_a_model_says_so(printed):
    lines = printed("keras")["late"]
    place = lines.index("none before")
    said = "made before the strategy: kernel:0 (3, 2). They stay on one device"
    assert not any("made before" in line for line in lines[:place])
    assert any(said in line for line in lines[place:])
