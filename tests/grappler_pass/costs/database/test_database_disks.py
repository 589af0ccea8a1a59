"""The cost database where it cannot be written: a job goes on, nothing is lost."""

import pathlib
import shutil
import sqlite3
import tempfile

import pytest

from grappler_pass.costs.database.price_database import CostDatabase, costs_path
from tests.costs_examples import (
    ROWS,
    files_beside,
    full_content,
    is_sound,
    keep,
    run,
    sizes_in,
    start,
)
from tests.forking import run_forked


def test_a_path_that_cannot_be_a_file_costs_one_warning(path, caplog):
    path.mkdir()
    below_a_file = path.parent / "file"
    below_a_file.write_text("")
    for number, wrong in enumerate((path, costs_path(below_a_file)), start=1):
        database = CostDatabase(wrong)
        keep(database, 1)
        keep(database, 2)
        assert sizes_in(database) == {1, 2}
        assert len(caplog.records) == number
    assert path.is_dir()


@pytest.fixture
def open_folder():
    """A folder that every user may look into, unlike `tmp_path`."""
    folder = pathlib.Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


READ_ONLY = """
if os.getuid() == 0:
    os.setuid(65534)
before = sizes_in(database)
keep(database, 1001)
keep(database, 1002)
print(sizes_in(database) == {*before, 1001, 1002}, len(before))
"""


def test_a_folder_that_cannot_be_written_to_is_read(open_folder):
    path = costs_path(open_folder)
    keep(CostDatabase(path), 1, 2, 3)
    content = {each.name: each.read_bytes() for each in open_folder.iterdir()}
    for each in (*open_folder.iterdir(), open_folder):
        each.chmod(0o555 if each.is_dir() else 0o444)
    child = start(READ_ONLY, path)
    out, err = child.communicate(timeout=60)
    assert out == "True 3\n", err
    assert err.count("cannot be kept") == 1
    assert {each.name: each.read_bytes() for each in open_folder.iterdir()} == content


def test_a_full_disk_loses_nothing_and_what_was_left_is_kept_later(path):
    program = """
    limit = os.path.getsize(database.path) + int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for first in range(1000, 1500, 50):
        keep(database, *range(first, first + 50))
    assert len(sizes_in(database)) == 400 + 500
    assert len(sizes_in(CostDatabase(database.path))) < 400 + 500
    print(len(sizes_in(CostDatabase(database.path))))
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    keep(database, 999)
    """
    for room in (0, 5000, 60000):
        path.write_bytes(full_content())
        assert int(run(program, path, room)) >= ROWS
        assert len(sizes_in(CostDatabase(path))) == ROWS + 501
        assert is_sound(path)
        assert files_beside(path) == {""}


def test_a_disk_without_any_room_is_read(path):
    path.write_bytes(full_content())
    program = """
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
    keep(database, 1000)
    print(len(sizes_in(database)))
    """
    assert int(run(program, path)) == ROWS + 1
    assert len(sizes_in(CostDatabase(path))) == ROWS


def test_who_reads_waits_for_no_writer_and_who_writes_not_for_long(path, caplog):
    database = CostDatabase(path)
    keep(database, 1)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert sizes_in(CostDatabase(path)) == {1}
    assert not caplog.records
    keep(database, 2)
    keep(database, 3)
    assert sizes_in(database) == {1, 2, 3}
    assert len(caplog.records) == 1
    assert "locked" in caplog.text
    other.execute("ROLLBACK")
    other.close()
    keep(database, 4)
    assert sizes_in(CostDatabase(path)) == {1, 2, 3, 4}


def test_what_could_not_be_written_is_written_when_the_program_ends(path):
    keep(CostDatabase(path), 1)
    program = f"""
    import pathlib, sqlite3
    from tests.costs_examples import *
    from tf_amp.measuring.known_costs import KnownCosts

    folder = pathlib.Path({str(path.parent)!r})
    known = KnownCosts.load("CPU", DEVICE, VERSION, folder)
    other = sqlite3.connect(known.database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    keep(known.database, 2)
    other.execute("ROLLBACK")
    print(len(sizes_in(CostDatabase(known.database.path))))
    """
    assert run_forked(program).lines() == ["1"]
    assert sizes_in(CostDatabase(path)) == {1, 2}


def test_a_file_taken_away_is_made_again(path):
    database = CostDatabase(path)
    for number in range(3):
        shutil.rmtree(path.parent)
        keep(database, number)
        assert sizes_in(CostDatabase(path)) == {number}


def test_a_python_without_sqlite_measures_without_keeping(path):
    program = f"""
    import pathlib, sys
    for name in [name for name in sys.modules if name.startswith(("tf_amp", "grappl"))]:
        del sys.modules[name]
    sys.modules["sqlite3"] = None
    from tf_amp.commands import cli
    from tf_amp.measuring.known_costs import KnownCosts
    known = KnownCosts.load("CPU", "key", "2.21.0", pathlib.Path({str(path.parent)!r}))
    known.add([])
    known.keep()
    print(len(known.prices), cli.main(["costs", "show"]))
    """
    done = run_forked(program)
    assert done.lines() == ["0 2"]
    assert "measured costs are not kept" in done.err
    assert "tf-amp: this Python cannot keep costs" in done.err
