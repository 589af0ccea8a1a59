"""A child that is forked while a thread holds a lock does not wait for that thread."""

from __future__ import annotations

import os
import threading

import pytest

from grappler_pass.fork_safety import renewed_lock
from tests.forking import run_forked
from tests.processes import ROOT

# Locks, each with what takes it.
_TAKERS = {
    "checkpoint_record._lock": "checkpoint_record.still_waiting()",
    "scale_state._lock": "scale_state.states_here()",
    "plans._made._lock": "plans.known()",
    "private._installing": "private.install({private.MAKE_MODEL: id})",
    "memory._file._lock": "memory.keep('g', KeptVerdict('g', True, 2.0, 1.0, 0.0))",
    "seen._lock": "seen.receive(_GraphRanges({'x': x}), 'x', np.ones(2))",
    "steps._timing": "steps.run(call); assert steps._counts.total() == 1",
}


@pytest.mark.parametrize("lock", _TAKERS)
def test_a_child_forked_while_a_thread_holds_a_lock_takes_it(lock: str) -> None:
    ended = run_forked(
        f"""
        import os, pathlib, signal, tempfile, threading
        from tf_amp import _tensorflow_private as private
        from tf_amp.compare.verdicts import StepMemory, KeptVerdict
        from tf_amp.compare.own_steps import StepComparison
        from tf_amp.rewriting.host import Memory
        import numpy as np
        from tf_amp.config.ranges import TensorRange
        from tf_amp.tools.ranges import Statistics, _GraphRanges
        from tf_amp.training import checkpoint_record, scale_state

        x = TensorRange('x', 0, 'Exp')
        seen, plans, steps = Statistics(), Memory(), StepComparison()
        folder = tempfile.mkdtemp()
        memory = StepMemory("a device", pathlib.Path(folder, "verdicts.json"))
        call = lambda label: None
        held, over = threading.Event(), threading.Event()

        def hold():
            with {lock}:
                held.set()
                over.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(5)
            {_TAKERS[lock]}
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        over.set()
        thread.join()
        """
    )
    assert ended.lines() == ["0"], ended.err


def test_a_child_forked_by_the_thread_that_holds_a_lock_holds_it_still() -> None:
    lock = renewed_lock()

    def is_free_for_others() -> bool:
        taken = []

        def take() -> None:
            with lock:
                taken.append(True)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        thread.join(0.2)
        return bool(taken)

    with lock:
        child = os.fork()
        if not child:
            free_within = is_free_for_others()
    if not child:
        os._exit(0 if not free_within and is_free_for_others() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_one_module_alone_has_the_interpreter_tell_of_forks() -> None:
    packages = ("tf_amp", "grappler_pass", "keras_callbacks")
    sources = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    named = [path.stem for path in sources if "register_at_fork" in path.read_text()]
    assert named == ["fork_safety"]
