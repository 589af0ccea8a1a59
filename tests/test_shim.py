"""The bridge in fresh processes: what reaches Python, and what comes back."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from tests.forking import run_forked
from tests.printed_programs import PrintedProgram, beginning, programs_beside
from tests.processes import ROOT, run_python

DOUBLING = beginning(ROOT / "tests" / "programs_of_the_shim.txt", "DOUBLING")


@pytest.mark.parametrize("program", programs_beside(__file__))
def test_a_program_prints_what_its_text_says(
    program: PrintedProgram, tmp_path: pathlib.Path
) -> None:
    program.check(tmp_path)


def test_the_interpreter_waits_at_exit_for_a_thread_inside_a_pass() -> None:
    # Of a daemon thread that is on its way from TensorFlow to Python while the
    # interpreter goes away, TensorFlow makes a crash by itself; so it is joined.
    printed = run_python(
        f"""
import atexit
entered, ended, threads = [], [], []
def look():
    print("passes", len(entered), len(ended))
    threads[0].join(60)
    print("result", results)
atexit.register(look)  # Runs after what is registered later, as by the plugin.
{DOUBLING}
results = []
def slow(graph, item):
    entered.append(1)
    end = time.monotonic() + 0.5
    while time.monotonic() < end: item.shapes(["x"])
    ended.append(1)
    return double_ones(graph, item)
plugin.load(slow)
threads.append(threading.Thread(target=lambda: results.append(answer()), daemon=True))
threads[0].start()
while not entered: time.sleep(0.01)
"""
    ).lines()
    assert printed == ["passes 1 1", "result [2.0]"]


def test_a_shim_that_is_missing_broken_or_doubled_is_named_with_the_remedy(
    tmp_path: pathlib.Path,
) -> None:
    copied = tmp_path / "_shim_cpu.so"
    shutil.copy(ROOT / "grappler_pass" / "_shim_cpu.so", copied)
    broken = tmp_path / "_shim_broken.so"
    broken.write_text("this is no library")
    printed = run_forked(
        DOUBLING
        + f"""
import ctypes, pathlib
def failure(path):
    plugin.shim_path = lambda device_type: pathlib.Path(path)
    try:
        plugin.load(double_ones)
    except plugin.ShimError as error:
        return str(error)
folder = {str(tmp_path)!r}
missing = failure(folder + "/_shim_none.so")
print(folder + "/_shim_none.so" in missing, "--no-deps .`" in missing)
sources = failure({str(ROOT / "grappler_pass" / "_shim_none.so")!r})
print("move your script" in sources, "`pip install -e .` there" in sources)
broken = failure(folder + "/_shim_broken.so")
print(folder + "/_shim_broken.so" in broken, "Reinstall" in broken)
print(answer(), bool(plugin._bridge.shims))
real = {str(ROOT / "grappler_pass" / "_shim_cpu.so")!r}
loaded = ctypes.CDLL(folder + "/_shim_cpu.so")
doubled = failure(real)
print(real in doubled, folder in doubled, "Uninstall" in doubled)
"""
    ).lines()
    yes = "True True"
    assert printed == [yes, yes, yes, "1.0 False", "True True True"]


def test_graphs_of_many_threads_at_once_all_reach_python(
    tmp_path: pathlib.Path,
) -> None:
    copy = tmp_path / "_shim_alone.so"
    shutil.copy(ROOT / "grappler_pass" / "_shim_cpu.so", copy)
    ended = run_python(
        f"""
        import pathlib
        from tests.shim_programs import graphs_seen

        for _ in range(4):
            print(graphs_seen(pathlib.Path({str(copy)!r}), threads=32, calls=200))
        """
    )
    assert ended.lines() == ["6400"] * 4
