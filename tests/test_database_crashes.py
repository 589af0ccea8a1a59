"""The cost database outlives kills, forks, crowds, damage, and full or closed disks.

Programs that are killed, forked or limited run in processes of their own.
"""

import os
import pathlib
import random
import shutil
import sqlite3
import tempfile
import textwrap
import threading

import pytest

from grappler_pass.costs import file_gate
from grappler_pass.costs.database import CostDatabase, costs_path
from grappler_pass.costs.records import Verdict
from tests.costs_examples import (
    DEVICE,
    VERSION,
    keep,
    run,
    sizes_in,
    start,
)

ROWS = 400


@pytest.fixture
def path(tmp_path):
    return costs_path(tmp_path)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A sound database of many pages."""
    path = costs_path(tmp_path_factory.mktemp("full"))
    keep(CostDatabase(path), *range(ROWS))
    return path


def is_sound(path):
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()


def files_beside(path):
    return {each.name.removeprefix(path.name) for each in path.parent.iterdir()}


# Forks writers and kills them, each after a random time; prints what each was told is
# kept, and what there is after it.
KILLER = """
def write(told, first):
    for elements in range(first, first + 1000):
        keep(CostDatabase(database.path) if elements % 3 else database, elements)
        if elements in sizes_in(database):
            os.write(told, b"%d\\n" % elements)

def one_kill(first, seconds):
    read, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        write(told, first)
        os._exit(0)
    os.close(told)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(read) as lines:
        return {int(line) for line in lines if line.endswith("\\n")}

def kill_often(seed, times, before=lambda: None):
    import random
    chance, kept = random.Random(seed), set()
    for round in range(times):
        before()
        kept |= one_kill(round * 1000, chance.uniform(0.0, 0.05))
        lost = kept - sizes_in(database)
        assert not lost, (round, lost)
    print(len(kept))
"""


def test_what_was_kept_before_a_kill_is_there_after_it(path):
    kept = run(KILLER + "kill_often(seed=1, times=80)", path)
    assert int(kept) > 10
    assert is_sound(path)
    assert not {name for name in files_beside(path) if "broken" in name}


def test_a_kill_while_the_database_is_made_leaves_a_sound_one(path):
    program = """
    def one_start(seconds):
        for each in database.path.parent.iterdir():
            each.unlink()
        kept = one_kill(0, seconds)
        assert kept <= sizes_in(database), kept

    for round in range(80):
        one_start(0.0002 * round)
    """
    run(KILLER + textwrap.dedent(program), path)
    assert is_sound(path)


def test_a_kill_while_a_damaged_database_is_mended_loses_nothing(path, full):
    damage(full, path, -5000)
    wanted = sizes_in(CostDatabase(path))
    assert len(wanted) > ROWS / 2
    program = """
    def one_mending(seconds, damaged):
        for each in database.path.parent.iterdir():
            each.unlink()
        database.path.write_bytes(damaged)
        one_kill(10**6, seconds)
        for elements in wanted - sizes_in(CostDatabase(database.path)):
            raise AssertionError((seconds, elements))

    full, wanted = pathlib.Path(sys.argv[2]), set(map(int, sys.argv[3:]))
    for round in range(30):
        one_mending(0.0015 * round, full.read_bytes()[:-5000])
    """
    run(KILLER + textwrap.dedent(program), path, full, *wanted)


CROWD = """
go = pathlib.Path(sys.argv[2])
patient = CostDatabase(database.path, patience_seconds=30)
children = []
for number in range(4):
    pid = os.fork()
    if pid == 0:
        while not go.exists():
            time.sleep(0.001)
        for elements in range(number, 120, 4):
            keep(patient, elements, 1000, 1001)
        os._exit(0)
    children.append(pid)
go.touch()
print([os.waitpid(pid, 0)[1] for pid in children])
"""


def test_four_processes_may_write_at_once(path, tmp_path):
    assert run(CROWD, path, tmp_path / "go") == "[0, 0, 0, 0]\n"
    assert sizes_in(CostDatabase(path)) == {*range(120), 1000, 1001}
    assert is_sound(path)


def test_four_processes_mend_a_damaged_database_once(path, tmp_path, full):
    damage(full, path, -5000)
    damaged = path.read_bytes()
    (tmp_path / "apart").mkdir()
    saved = sizes_in(CostDatabase(shutil.copy(path, tmp_path / "apart" / path.name)))
    assert run(CROWD, path, tmp_path / "go") == "[0, 0, 0, 0]\n"
    assert saved | {*range(120), 1000, 1001} == sizes_in(CostDatabase(path))
    assert is_sound(path)
    assert {name for name in files_beside(path) if "broken" in name} == {".broken"}
    assert pathlib.Path(f"{path}.broken").read_bytes() == damaged


def test_forking_amid_writing_harms_neither_side(path):
    program = """
    import threading
    database = CostDatabase(database.path, patience_seconds=30)
    stop = threading.Event()
    numbers = iter(range(10**6))
    def write():
        while not stop.is_set():
            keep(database, next(numbers))
            time.sleep(0.002)
    writers = [threading.Thread(target=write, daemon=True) for _ in range(2)]
    for each in writers:
        each.start()
    def child(first):
        for elements in range(first, first + 5):
            keep(database, elements)
        os._exit(len(set(range(first, first + 5)) - sizes_in(database)))
    for number in range(12):
        pid = os.fork()
        if pid == 0:
            child(10**6 + number * 5)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    for each in writers:
        each.join()
    print(next(numbers))
    """
    written = int(run(program, path))
    assert sizes_in(CostDatabase(path)) >= {*range(written - 1)}
    assert sizes_in(CostDatabase(path)) >= {*range(10**6, 10**6 + 60)}
    assert is_sound(path)


def test_a_child_forked_amid_a_transaction_remembers_by_itself(path):
    database = CostDatabase(path)
    keep(database, 1)
    inside, leave = threading.Event(), threading.Event()

    def stay():
        with file_gate.shared(path, 1.0):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        keep(database, 2)
        os._exit(0 if sizes_in(database) == {2} else 1)
    assert os.waitpid(pid, 0)[1] == 0
    leave.set()
    thread.join()
    keep(database, 3)
    assert sizes_in(database) == {1, 3}


def test_nothing_stays_open_when_a_thread_has_ended(path):
    database = CostDatabase(path)
    threads = [threading.Thread(target=keep, args=(database, n)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    links = [each for each in pathlib.Path("/proc/self/fd").iterdir() if each.exists()]
    assert path.name not in {each.resolve().name for each in links}
    assert sizes_in(database) == {*range(20)}


def damage(full, path, length):
    path.write_bytes(full.read_bytes()[:length])


LENGTHS = (1, 15, 16, 17, 71, 99, 100, 101, 4095, 4096, 4097, 8192, 12288, 16384, 20001)


@pytest.mark.parametrize("length", [*LENGTHS, *range(-40000, 0, 7919), -4096, -1])
def test_a_database_cut_off_is_put_aside_and_its_rows_saved(path, full, caplog, length):
    damage(full, path, length)
    damaged = path.read_bytes()
    database = CostDatabase(path)
    saved = sizes_in(database)
    assert saved <= {*range(ROWS)}
    # All but those of the last pages, of which the first few hold no rows.
    share = len(damaged) / full.stat().st_size
    assert len(saved) >= ROWS * (share - 0.15)
    keep(database, 10**6)
    assert sizes_in(CostDatabase(path)) == {*saved, 10**6}
    assert is_sound(path)
    assert pathlib.Path(f"{path}.broken").read_bytes() == damaged
    assert len(caplog.records) == 1
    assert ".broken" in caplog.text


@pytest.mark.parametrize("seed", range(12))
def test_pages_of_noise_never_stop_a_job(path, full, seed):
    chance = random.Random(seed)
    content = bytearray(full.read_bytes())
    for _ in range(1 + seed % 4):
        place = chance.randrange(100, len(content) - 300)
        content[place : place + 300] = chance.randbytes(300)
    path.write_bytes(content)
    database = CostDatabase(path)
    sizes_in(database)
    keep(database, 10**6)
    assert 10**6 in sizes_in(CostDatabase(path))
    assert is_sound(path)


def test_damage_under_way_is_noticed_and_mended(path, full, caplog):
    shutil.copy(full, path)
    database = CostDatabase(path)
    assert len(sizes_in(database)) == ROWS
    os.truncate(path, 20001)
    keep(database, 10**6)
    assert 10**6 in sizes_in(CostDatabase(path))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("content", [b"notes, not a database\n" * 9, bytes(9000), b"x"])
def test_a_file_that_is_no_database_is_moved_whole(path, content):
    for number in range(2):
        path.write_bytes(content)
        database = CostDatabase(path)
        keep(database, number)
        assert sizes_in(CostDatabase(path)) == {number}
    for suffix in (".broken", ".broken1"):
        assert pathlib.Path(f"{path}{suffix}").read_bytes() == content


def test_a_database_of_somebody_else_is_left_alone(path, caplog):
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE costs (device)")
    foreign.commit()
    foreign.close()
    assert_left_alone(path, caplog, "another program's database")


def test_a_database_of_a_later_version_is_left_alone(path, full, caplog):
    content = bytearray(full.read_bytes())
    content[60:64] = (2).to_bytes(4, "big")
    path.write_bytes(content)
    assert_left_alone(path, caplog, "another version of tf-amp")


def assert_left_alone(path, caplog, reason):
    content = path.read_bytes()
    database = CostDatabase(path)
    for elements in (1, 2):
        keep(database, elements)
    verdict = Verdict(True, 2.0, 1.0)
    database.keep_verdict(DEVICE, VERSION, "it", verdict)
    assert sizes_in(database) == {1, 2}
    assert database.verdict(DEVICE, VERSION, "it") == verdict
    assert not sizes_in(CostDatabase(path))
    assert path.read_bytes() == content
    assert files_beside(path) <= {"", ".lock"}
    text = [record.getMessage() for record in caplog.records]
    assert [reason in line and str(path) in line for line in text] == [True, True]


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


@pytest.mark.parametrize("killed", [False, True])
def test_a_folder_that_cannot_be_written_to_is_read(open_folder, killed):
    path = costs_path(open_folder)
    keep(CostDatabase(path), 1, 2, 3)
    if killed:
        leave_a_journal(path)
    content = {each.name: each.read_bytes() for each in open_folder.iterdir()}
    for each in (*open_folder.iterdir(), open_folder):
        each.chmod(0o555 if each.is_dir() else 0o444)
    child = start(READ_ONLY, path)
    out, err = child.communicate(timeout=60)
    assert out == f"True {4 if killed else 3}\n", err
    assert err.count("cannot be kept") == 1
    assert {each.name: each.read_bytes() for each in open_folder.iterdir()} == content


def leave_a_journal(path):
    """Leave the files as a process does that is killed before it can tidy up."""
    reader = sqlite3.connect(path)
    reader.execute("SELECT count(*) FROM costs").fetchall()
    keep(CostDatabase(path), 4)
    left = {
        f"{path}{end}": pathlib.Path(f"{path}{end}").read_bytes()
        for end in ("", "-wal")
    }
    reader.close()
    for name, content in left.items():
        pathlib.Path(name).write_bytes(content)


def test_a_full_disk_loses_nothing_and_what_was_left_is_kept_later(path, full):
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
        shutil.copy(full, path)
        assert int(run(program, path, room)) >= ROWS
        assert len(sizes_in(CostDatabase(path))) == ROWS + 501
        assert is_sound(path)
        assert files_beside(path) <= {"", ".lock"}


def test_a_disk_without_any_room_is_read(path, full):
    shutil.copy(full, path)
    program = """
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
    keep(database, 1000)
    print(len(sizes_in(database)))
    """
    assert int(run(program, path)) == ROWS + 1
    assert len(sizes_in(CostDatabase(path))) == ROWS


def test_a_file_that_may_not_grow_keeps_what_it_has(path, caplog):
    database = CostDatabase(path, largest_bytes=16 * 4096)
    for first in range(0, 1000, 20):
        keep(database, *range(first, first + 20))
    assert sizes_in(database) == {*range(1000)}
    in_file = sizes_in(CostDatabase(path))
    assert 20 <= len(in_file) < 1000
    assert path.stat().st_size <= 16 * 4096
    assert is_sound(path)
    assert len(caplog.records) == 1
    keep(CostDatabase(path), 10**6)
    assert sizes_in(CostDatabase(path)) == {*in_file, 10**6}


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


def test_a_file_taken_away_is_made_again(path):
    database = CostDatabase(path)
    for number in range(3):
        shutil.rmtree(path.parent)
        keep(database, number)
        assert sizes_in(CostDatabase(path)) == {number}
