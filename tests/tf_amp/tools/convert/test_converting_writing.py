"""A converted model is there whole, or not at all."""

import itertools
import resource
import shutil
import sys
import time

import pytest
import tensorflow as tf

import tf_amp
from tests.forking import Child
from tests.processes import ROOT, started
from tests.stored_models import PLANNED
from tf_amp.errors import ConfigError, ConversionError
from tf_amp.tools.convert import files


def test_a_model_at_the_target_is_not_harmed(model, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("a")
    with pytest.raises(ConfigError, match="--overwrite"):
        tf_amp.convert(model, tmp_path / "out", **PLANNED)
    assert (tmp_path / "out" / "precious").read_text() == "a"
    tf_amp.convert(model, tmp_path / "out", overwrite=True, **PLANNED)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    assert not (tmp_path / "out" / "precious").exists()


@pytest.mark.parametrize("weights", ["float32", "low"])
def test_on_a_full_disk_nothing_is_left(model, tmp_path, weights):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
    try:
        with pytest.raises(ConversionError, match="nothing of it was kept"):
            tf_amp.convert(model, tmp_path / "out", weights=weights, **PLANNED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(tmp_path.iterdir())


KILLED = """
import pathlib, sys, time
from tf_amp.tools.convert import files
target = pathlib.Path(sys.argv[1])
with files.replacing(target) as draft:
    draft.mkdir()
    (draft / "new").write_text("new")
    print("written", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def test_a_killed_conversion_leaves_what_was_there_and_is_tidied_up(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("old")
    program = [sys.executable, "-c", KILLED, str(target), "60"]
    with started(program, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
    assert [p.name for p in target.iterdir()] == ["old"]
    assert len(list(tmp_path.iterdir())) == 2
    with files.replacing(target) as draft:
        draft.mkdir()
        (draft / "new").write_text("new")
    assert [p.name for p in target.iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


CONVERTED = """
import tf_amp
tf_amp.convert({model!r}, {target!r}, overwrite=True, batch=64, **{options!r})
"""


def test_convert_killed_at_any_moment_leaves_a_whole_model(model, tmp_path):
    target = tmp_path / "models" / "out"
    shutil.copytree(model, target)
    before = _contents(target)
    code = CONVERTED.format(model=str(model), target=str(target), options=PLANNED)
    moments = itertools.chain((0.0, 0.02, 0.1), itertools.repeat(60.0))
    # Each is killed so long after something of it could be seen; the last one ends.
    killed = 0
    for seconds in moments:
        child = Child(code, {}, tmp_path / "printed", tmp_path / "errors")
        while child.poll() is None and len(list(target.parent.iterdir())) == 1:
            time.sleep(0.002)
        end = time.monotonic() + seconds
        while child.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        child.kill()
        if child.wait() == 0:
            break
        killed += 1
        # The last moment of a child that is killed may lie after its model was written.
        if _contents(target) != before:
            assert tf.saved_model.load(str(target)).signatures
    assert killed and _contents(target) != before
    assert [path.name for path in target.parent.iterdir()] == ["out"]
    assert tf.saved_model.load(str(target)).signatures


def _contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


SWAPS = """
import pathlib, sys
from tf_amp.tools.convert import files
target = pathlib.Path(sys.argv[1])
print("begun", flush=True)
for number in range(10**6):
    with files.replacing(target) as draft:
        draft.mkdir()
        (draft / "first").write_text(str(number))
        (draft / "last").write_text(str(number))
"""


def test_there_is_a_whole_model_at_every_moment(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    for name in ("first", "last"):
        (target / name).write_text("0")
    for seconds in (0.05, 0.11, 0.17):
        with started([sys.executable, "-c", SWAPS, str(target)], cwd=ROOT) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(seconds)
        assert (target / "first").read_text() == (target / "last").read_text()
