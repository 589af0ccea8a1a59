"""Attributes that are computed once, also while the process forks."""

from __future__ import annotations

import concurrent.futures as futures
import dataclasses
import os
import signal
import threading
from collections.abc import Callable

from grappler_pass.fork_safety import cached_attribute


@dataclasses.dataclass(frozen=True)
class Square:
    side: int

    @cached_attribute
    def area(self) -> list[int]:
        """Of the square."""
        return [self.side**2]


def test_an_attribute_is_computed_once_for_each_object() -> None:
    small, large = Square(2), Square(3)
    assert (small.area, large.area) == ([4], [9])
    assert small.area is small.area
    assert dataclasses.replace(small, side=4).area == [16]
    assert Square.area.__doc__ == "Of the square."


def test_threads_that_ask_at_once_get_the_same() -> None:
    both = threading.Barrier(2)

    class Slow:
        @cached_attribute
        def value(self) -> object:
            both.wait(60)
            return object()

    slow = Slow()
    with futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: slow.value, range(2))
    assert first is second is slow.value


@dataclasses.dataclass(frozen=True)
class Asked:
    compute: Callable[[], str]

    @cached_attribute
    def answer(self) -> str:
        """What is computed."""
        return self.compute()


def _ask_for_another() -> None:
    """Be the child: end well, or by the alarm if there is a lock to wait for."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        assert Asked(lambda: "other").answer == "other"
        os._exit(0)
    finally:
        os._exit(1)


def test_a_child_forked_while_a_thread_computes_computes_its_own() -> None:
    computing, ends = threading.Event(), threading.Event()

    def compute() -> str:
        computing.set()
        ends.wait(60)
        return "computed"

    asked = Asked(compute)
    thread = threading.Thread(target=lambda: asked.answer)
    thread.start()
    computing.wait(60)
    child = os.fork()
    if not child:
        _ask_for_another()
    _, status = os.waitpid(child, 0)
    ends.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
