"""Every way to write and restore, by processes with tf-amp and without.

Weights, slots and iteration come back to the last bit and without a word, but for one
where a training with tf-amp finds no loss scale; where there is one it comes back, too,
and the training goes on to the last bit as if it had not been interrupted.
"""

import functools
import json
import re

import pytest

from tests.checkpoint_ways import GOOD_STEPS, WAYS
from tests.forking import run_forked
from tests.long import parameters

SETTINGS = {
    "dtype": "float16",
    "opt_level": "O2",
    "loss_scale": "dynamic:initial=1024,growth_interval=5",
}
# The same for a program in which nothing changes.
VARIABLES = {
    "TF_ENABLE_AUTO_MIXED_PRECISION": SETTINGS["dtype"],
    "TF_AMP_OPT_LEVEL": SETTINGS["opt_level"],
    "TF_AMP_LOSS_SCALE": SETTINGS["loss_scale"],
}
# These are tried with tf-amp on one side alone; all, with it on both.
WITH_IT_ON_ONE_SIDE = (
    "Checkpoint.restore",
    "CheckpointManager",
    "load_weights",
    "load_model",
    "tf_keras load_weights",
    "tf_keras load_model, h5",
    "Saver",
    "MonitoredTrainingSession",
)
# As others of them do.
ALIKE = (
    "CheckpointManager",
    "load_weights",
    "tf_keras load_weights",
    "MonitoredTrainingSession",
)
# They restore what they name, and no loss scale.
OF_WHAT_IS_NAMED = ("load_checkpoint", "init_from_checkpoint")
# It restores no slots, so that training goes on otherwise.
WITHOUT_SLOTS = ("tf_keras load_model, folder",)

# Steps after those that are saved; the scale grows with the second.
MORE = 4
# Scale, good steps and skipped steps after the steps of a reader.
FRESH, RESUMED = [1024.0, MORE, 0], [1024.0, GOOD_STEPS + MORE - 5, 1]
# What TensorFlow will drop, and what tf-amp misses in an older one.
OF_OTHER_THINGS = re.compile(r"is deprecated|\(AMP203\)")
BEGIN = {
    "without": "",
    "with": f"import tf_amp; tf_amp.enable(**{SETTINGS})",
    "by variable": "",
}

WRITER = """
import pathlib
import numpy as np
from tests import checkpoint_ways as ways

folder = pathlib.Path({folder!r})
training = ways.{kind}(folder)
training.train_and_save({overflows})
np.savez(folder / "values.npz", *training.values())
for _ in range({more}):
    training.train(ways.X)
np.savez(folder / "after.npz", *training.values())
"""
READER = """
import gc, json, pathlib
import numpy as np
from tests import checkpoint_ways as ways

folder = pathlib.Path({folder!r})
training = ways.{kind}(folder)
training.{restore}
# Whatever complains of what was not restored does so once it is collected.
gc.collect()

def are_those_of(name):
    with np.load(folder / name) as file:
        pairs = zip(training.values(), file.values(), strict=True)
        return all(map(np.array_equal, *zip(*pairs)))

assert are_those_of("values.npz")
if {is_on}:
    for _ in range({more}):
        training.train(ways.X)
    state = training.state()
    figures = [state.scale, state.good_steps, state.skipped_steps]
    print(json.dumps([figures, are_those_of("after.npz")]))
"""


def run(program, mode):
    env = VARIABLES if mode == "by variable" else {}
    return run_forked(f"{BEGIN[mode]}\n{program}", env=env)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return what has a training save all its files, with tf-amp or without."""

    @functools.cache
    def folder_of(kind, mode):
        folder = tmp_path_factory.mktemp("written")
        overflows = int(mode == "with")
        names = {"folder": str(folder), "kind": kind.__name__, "overflows": overflows}
        run(WRITER.format(**names, more=MORE), mode).lines()
        return folder

    return folder_of


def restored(folder, way, mode):
    """Return what a reader comes to, and what it is warned of.

    That is its state in the end, and whether its values are then those of a training
    that was not interrupted.
    """
    kind, restore = WAYS[way]
    names = {"folder": str(folder), "kind": kind.__name__, "restore": restore}
    done = run(READER.format(**names, more=MORE, is_on=mode != "without"), mode)
    said = re.findall(r"^(?:WARNING:\w+:|.*Warning: ).*", done.err, re.MULTILINE)
    told = [line for line in said if not OF_OTHER_THINGS.search(line)]
    return [json.loads(line) for line in done.lines()], told


@pytest.mark.parametrize("way", parameters(WITH_IT_ON_ONE_SIDE, ALIKE))
def test_without_tf_amp_what_was_written_with_it_restores(way, written):
    assert restored(written(WAYS[way][0], "with"), way, "without") == ([], [])


@pytest.mark.parametrize("way", parameters(WITH_IT_ON_ONE_SIDE, ALIKE))
def test_with_tf_amp_what_was_written_without_it_restores(way, written):
    ((state, _),), (line,) = restored(written(WAYS[way][0], "without"), way, "with")
    assert state == FRESH
    assert line.endswith("DynamicLossScale starts at 1024. (AMP501)")


@pytest.mark.parametrize("way", WAYS)
def test_the_first_thing_that_a_process_does_may_be_to_restore(way, written):
    (((state, is_same),), told) = restored(
        written(WAYS[way][0], "with"), way, "by variable"
    )
    assert not told
    assert state == (FRESH if way in OF_WHAT_IS_NAMED else RESUMED)
    assert is_same == (way not in WITHOUT_SLOTS)
