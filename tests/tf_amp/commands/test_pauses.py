"""Calls during which no graph reaches Python, several at once."""

from __future__ import annotations

from tests.shim_programs import run_with_shim


def test_pauses_of_several_threads_end_with_the_last_of_them() -> None:
    printed = run_with_shim(
        """
def pause(entered, leave):
    with plugin.paused():
        entered.set(); leave.wait(60)

class Pause:
    def __init__(self):
        entered, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=pause, args=(entered, self._leave))
        self._thread.start(); entered.wait(60)
    def end(self):
        self._leave.set(); self._thread.join(60)

plugin.load(double_ones)
first, second = Pause(), Pause()
print("both", answer())
first.end()
print("second", answer())
second.end()
print("neither", answer())
"""
    )
    assert printed == ["both 1.0", "second 1.0", "neither 2.0"]


def test_what_is_set_during_a_pause_holds_after_it() -> None:
    printed = run_with_shim(
        """
plugin.load(double_ones)
with plugin.paused():
    child = os.fork()
    if not child:
        plugin.set_callback(double_ones)
        os._exit(0 if answer() == 2.0 else 1)
print("child", os.waitpid(child, 0)[1])
with plugin.paused():
    plugin.clear_callback()
print("cleared", answer())
with plugin.paused():
    plugin.set_callback(double_ones)
    print("set", answer())
print("afterwards", answer())
"""
    )
    assert printed == ["child 0", "cleared 1.0", "set 1.0", "afterwards 2.0"]
