"""The garbage collector pauses for what plans, in as many threads as do so."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from grappler_pass.garbage import collection_allowed, collection_paused
from tf_amp.run.graph_run import run_in_own_thread


@pytest.fixture(autouse=True)
def _is_enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    assert gc.isenabled()


def _pausing() -> tuple[threading.Thread, threading.Event, threading.Event]:
    """Return a thread that pauses, when it has begun to, and what lets it end."""
    entered, leave = threading.Event(), threading.Event()

    def pause() -> None:
        with collection_paused():
            entered.set()
            leave.wait(10.0)

    return threading.Thread(target=pause), entered, leave


def test_the_last_thread_to_leave_has_garbage_collected_again() -> None:
    thread, entered, leave = _pausing()
    with collection_paused():
        thread.start()
        entered.wait(10.0)
    assert not gc.isenabled()
    leave.set()
    thread.join()


def test_a_pause_within_a_pause_ends_with_the_outer_one() -> None:
    with collection_paused():
        with collection_paused():
            pass
        assert not gc.isenabled()
        with collection_allowed():
            assert gc.isenabled()
        assert not gc.isenabled()


def test_what_was_switched_off_before_stays_so() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_kernels_are_run_with_the_collector_on() -> None:
    with collection_paused():
        assert run_in_own_thread(lambda stops: gc.isenabled(), 10.0)
        assert not gc.isenabled()


def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    thread, entered, leave = _pausing()
    thread.start()
    entered.wait(10.0)
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
