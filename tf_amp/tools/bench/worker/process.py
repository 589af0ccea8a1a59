"""One process of a measurement: run the target under a method, and keep a journal.

Started by `processes` with the task as JSON; exits as the target does.
"""

from __future__ import annotations

import ctypes
import itertools
import pathlib
import signal
import sys

from tf_amp.errors import AmpError
from tf_amp.tools import running_scripts
from tf_amp.tools.bench.job import BATCH_PLACE, FUNCTION, SCRIPT
from tf_amp.tools.bench.worker import steps, switches, watching
from tf_amp.tools.bench.worker.journal import COMPARED_STEPS, OWN_KIND, Journal
from tf_amp.tools.bench.worker.sampled import sampled_values
from tf_amp.tools.bench.worker.task import Task

_FEWEST_STEPS = 12
_COMPARED_CALLS = "tf_amp.measuring.steps.compared_calls"
_MOST_COMPARING_SECONDS = 90.0
_SET_SIGNAL_OF_PARENTS_DEATH = 1


def main() -> None:
    """Do the task on the command line."""
    # Whatever ends the one that waits for this process ends it, too.
    ctypes.CDLL(None).prctl(_SET_SIGNAL_OF_PARENTS_DEATH, signal.SIGKILL)
    task = Task.from_json(sys.argv[1])
    journal = Journal(pathlib.Path(task.journal))
    try:
        watching.watch(journal)
        switches.switch_on(task.method)
        if task.target.kind == SCRIPT:
            _run_script(task)
        else:
            _run_steps(_step_of(task), journal, task.seconds)
    except AmpError as error:
        if error.is_scripts_own:
            raise
        sys.exit(str(error))


def _run_script(task: Task) -> None:
    batch = "" if task.batch is None else str(task.batch)
    arguments = [each.replace(BATCH_PLACE, batch) for each in task.target.arguments]
    running_scripts.run_script(task.target.name, arguments, as_module=False)


def _step_of(task: Task) -> steps.Step:
    assert task.batch is not None
    target = task.target
    if target.kind == FUNCTION:
        sys.path.insert(0, str(pathlib.Path.cwd()))
        return steps.step_of_function(target.name, task.batch, task.mode)
    return steps.step_of_saved_model(target.name, target.signature, task.batch)


def _run_steps(step: steps.Step, journal: Journal, seconds: float) -> None:
    """Call a step once, until tf-amp has compared it, and then for a while.

    What is compared is written as one step, a mean: half of it runs in float32.
    """
    numbers = itertools.count()

    def call() -> None:
        computed = step()
        _sync_devices()
        if next(numbers) < COMPARED_STEPS:
            with journal.looking():
                journal.values(OWN_KIND, sampled_values(computed))

    def timed_call() -> None:
        begin = journal.now()
        call()
        journal.step(OWN_KIND, begin, journal.now())

    timed_call()
    compared, begin = 0, journal.now()
    while _is_comparing() and journal.now() < begin + _MOST_COMPARING_SECONDS:
        call()
        compared += 1
    if compared:
        journal.step(OWN_KIND, begin, journal.now(), compared)
    timed, until = 1, journal.now() + seconds
    while timed < _FEWEST_STEPS or journal.now() < until:
        timed_call()
        timed += 1


def _is_comparing() -> bool:
    """Return whether tf-amp runs a function both ways, to see which is faster."""
    module = sys.modules.get(_COMPARED_CALLS)
    return module is not None and module.is_any_open()


def _sync_devices() -> None:
    """Wait until a step is done that TensorFlow has only begun."""
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].test.experimental.sync_devices()
