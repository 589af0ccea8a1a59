"""The cost database outlives kills, forks and crowds, in processes of their own."""

import pathlib
import textwrap
import threading

from grappler_pass.costs.database.price_database import CostDatabase
from tests.costs_examples import (
    files_beside,
    full_content,
    is_sound,
    keep,
    run,
    sizes_in,
)

# Forks writers and kills them, each at a random moment; prints what each was told is
# kept, and what there is after it.
KILLER = """
def write(told, first):
    for elements in range(first, first + 1000):
        keep(CostDatabase(database.path) if elements % 3 else database, elements)
        if elements in sizes_in(CostDatabase(database.path)):
            os.write(told, b"%d\\n" % elements)

def one_kill(first, seconds, after=0):
    read, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        write(told, first)
        os._exit(0)
    os.close(told)
    with os.fdopen(read) as lines:
        kept = {int(lines.readline()) for _ in range(after)}
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return kept | {int(line) for line in lines if line.endswith("\\n")}

def kill_often(seed, times):
    import random
    chance, kept = random.Random(seed), set()
    for round in range(times):
        kept |= one_kill(round * 1000, chance.uniform(0.0, 0.02), round % 3)
        lost = kept - sizes_in(database)
        assert not lost, (round, lost)
    print(len(kept))
"""


def test_what_was_kept_before_a_kill_is_there_after_it(path):
    kept = run(KILLER + "kill_often(seed=1, times=42)", path)
    assert int(kept) >= 42
    assert is_sound(path)
    assert not {name for name in files_beside(path) if "broken" in name}


def test_a_kill_while_the_database_is_made_leaves_a_sound_one(path):
    program = """
    def one_start(seconds):
        for each in database.path.parent.iterdir():
            each.unlink()
        kept = one_kill(0, seconds)
        assert kept <= sizes_in(database), kept

    for round in range(40):
        one_start(0.0004 * round)
    """
    run(KILLER + textwrap.dedent(program), path)
    assert is_sound(path)


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


def test_four_processes_begin_anew_where_they_find_a_damaged_file(path, tmp_path):
    path.write_bytes(full_content()[:-5000])
    damaged = path.read_bytes()
    assert run(CROWD, path, tmp_path / "go") == "[0, 0, 0, 0]\n"
    assert {*range(120), 1000, 1001} == sizes_in(CostDatabase(path))
    assert is_sound(path)
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


def test_a_fork_waits_for_the_transaction_of_another_thread(path):
    program = """
    import threading
    from grappler_pass.costs.database import price_database
    keep(database, 1)
    inside = threading.Event()
    def stay():
        with price_database._turn:
            inside.set()
            time.sleep(0.2)
            stay.left = True
    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        keep(database, 2)
        os._exit(not stay.left or sizes_in(database) != {1, 2})
    print(os.waitpid(pid, 0)[1])
    thread.join()
    keep(database, 3)
    """
    assert run(program, path) == "0\n"
    assert sizes_in(CostDatabase(path)) == {1, 2, 3}


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
