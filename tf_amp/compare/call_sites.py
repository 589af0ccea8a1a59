"""Which calls of what take part in comparisons of steps.

Wraps the methods of TensorFlow that call functions in eager mode, and that run a graph
in a Session. A graph arrives on the thread of the call that needs it, so that the
thread knows whose graph it is, and for which instance.

A Session keeps what it has optimized by the names of feeds, fetches and targets: a
target that is named again makes another instance. Instances share variables, queues,
iterators and all kernels of stateful ops, by the names of their nodes, so that seeded
random draws go on in one stream; only those within functions that are not inlined are
each instance's own. A plan that changes the type of such a kernel is not compared.
Partial runs, `make_callable`, and Sessions on a server, whose graphs arrive elsewhere,
go by their prices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grappler_pass.fork_safety import renewed_lock
from grappler_pass.graph.op_traits import keeps_kernel
from tf_amp._tensorflow_private import eager_context, functions
from tf_amp.compare.alternation import (
    FLOAT32,
    LABELS,
    LATE,
    MIXED,
    OWN_FAULTS,
    Agreement,
    Decided,
    Profiled,
    StepComparison,
    Steps,
)
from tf_amp.tracing import graph_names

if TYPE_CHECKING:
    from grappler_pass.planning.draft import Trial


@dataclasses.dataclass(eq=False, slots=True)
class CallCount:
    """How often something has been called."""

    count: int = 0


@dataclasses.dataclass(eq=False, slots=True)
class _Callee(CallCount):
    """What is called, in one instance or another, and what is going on with it.

    Attributes:
      key: of a function its name, of a run what is fed, fetched and run.
      is_run: whether it is a run.
      is_compiled: whether it is a function that XLA compiles.
      is_new: whether it is called for the first time, as far as is known.
      comparison: that it takes part in.
      instances: by label, the names of a compiled function's instances.
    """

    key: Hashable = None
    is_run: bool = False
    is_compiled: bool = False
    is_new: bool = True
    comparison: StepComparison | None = None
    instances: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """As TensorFlow calls a function; "" of a run."""
        return "" if self.is_run else self.key.decode()  # type: ignore[attr-defined]

    def compare(self, comparison: StepComparison) -> StepComparison:
        """Let it take part in a comparison, and return that."""
        self.comparison = comparison
        return comparison

    def instance(self, label: str) -> bytes:
        """Return the name of the function that is called for a label."""
        return self.instances.get(label, self.key)  # type: ignore[arg-type]

    def has_instances(self, trial: Trial) -> bool:
        """Return whether two graphs may be run in turn."""
        if self.is_run:
            return _shares_kernels(trial)
        return functions.has_instances(eager_context())


class _Thread(threading.local):
    """What a thread calls, and in which instance."""

    callee: _Callee | None = None
    label: str = MIXED


_thread = _Thread()
_lock = renewed_lock()
# By name of a function, which TensorFlow gives once in a process.
_of_functions: dict[bytes, _Callee] = {}
_of_sessions: weakref.WeakKeyDictionary[Any, dict[Hashable, _Callee]] = (
    weakref.WeakKeyDictionary()
)


def comparing_calls(
    call_function: Callable[..., Any], first_called: Callable[[Any, bytes], None]
) -> Callable[..., Any]:
    """Wrap the method that calls a function in eager mode.

    Something is done at its first call, and at the first after `begin_anew`.
    """

    @functools.wraps(call_function)
    def call_in_turn(context: Any, name: bytes, *args: Any, **kwargs: Any) -> Any:
        callee = _of_functions.get(name) or _function(name)
        if callee.is_new:
            callee.is_new = False
            first_called(context, name)

        def call(label: str) -> Any:
            instance = callee.instance(label)
            with functions.in_instance(context, label):
                return _called(
                    callee, label, call_function, context, instance, *args, **kwargs
                )

        if callee.comparison or callee.instances:
            return _in_turn(callee, call)
        # So are nearly all calls; each Python function on their way takes up to 1 us.
        callee.count += 1
        try:
            return _called(callee, MIXED, call_function, context, name, *args, **kwargs)
        except OWN_FAULTS as error:
            return _anew(callee, call, error)

    return call_in_turn


def begin_anew() -> None:
    """Take the next call of each function for its first."""
    of_sessions = [
        callee for each in [*_of_sessions.values()] for callee in [*each.values()]
    ]
    for callee in (*tuple(_of_functions.values()), *of_sessions):
        callee.is_new = True


def _function(name: bytes) -> _Callee:
    return _of_functions.get(name) or _of_functions.setdefault(name, _Callee(key=name))


def comparing_runs(
    run: Callable[..., Any],
    times_changed: Callable[[Any], int],
    first_called: Callable[[Any], None],
) -> Callable[..., Any]:
    """Wrap the method that runs a graph in a Session.

    The graph is optimized anew, too, as often as its settings have changed. Something
    is done at the first run, as with functions.
    """

    @functools.wraps(run)
    def run_in_turn(
        session: Any, handle: Any, targets: Any, fetches: Any, feeds: Any, *args: Any
    ) -> Any:
        if handle is not None:
            return run(session, handle, targets, fetches, feeds, *args)
        anew = times_changed(session.graph) * len(LABELS)
        names = (frozenset(t.ref() for t in fetches), frozenset(targets))
        key = (frozenset(feeds), *names)
        of_session = _of_sessions.setdefault(session, {})
        callee = of_session.setdefault(key, _Callee(key=key, is_run=True))
        if callee.is_new:
            callee.is_new = False
            first_called(session)

        def call(label: str) -> Any:
            number = anew + LABELS.index(label)
            again = functions.targets_of_instance(number, targets, fetches)
            return _called(
                callee, label, run, session, None, again, fetches, feeds, *args
            )

        return _in_turn(callee, call)

    return run_in_turn


def _in_turn(callee: _Callee, call: Callable[[str], Any]) -> Any:
    """Make a call, given its label, in the instance whose turn it is."""
    callee.count += 1
    comparison = callee.comparison
    if comparison is None:
        try:
            return call(MIXED)
        except OWN_FAULTS as error:
            return _anew(callee, call, error)
    if comparison.is_over and comparison.winner == MIXED:
        callee.comparison = None
    return comparison.run(call)


def _anew(callee: _Callee, call: Callable[[str], Any], error: Exception) -> Any:
    """Make a call that has failed in float32, if a comparison has begun with it."""
    comparison = callee.comparison
    if comparison is None or comparison.is_shared or comparison.is_late:
        raise error
    return comparison.failed(call)


def _called(
    callee: _Callee, label: str, call: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call something, and let the graphs that arrive meanwhile know what it is."""
    outer = _thread.callee, _thread.label
    _thread.callee, _thread.label = callee, label
    try:
        return call(*args, **kwargs)
    finally:
        _thread.callee, _thread.label = outer


def _shares_kernels(trial: Trial) -> bool:
    """Return whether nodes that share a kernel, by name, would make the same one."""
    before = {node.name: node for node in trial.before.node if keeps_kernel(node.op)}
    return all(
        _kernel_of(node) == _kernel_of(before[node.name])
        for node in trial.after.node
        if node.name in before
    )


def _kernel_of(node: Any) -> tuple[str, dict[str, Any]]:
    attrs = {name: node.attr[name] for name in node.attr if not name.startswith("_")}
    return node.op, attrs


def _current() -> StepComparison | None:
    """Return the comparison that this thread's call takes part in."""
    callee = _thread.callee
    return None if callee is None else callee.comparison


def is_any_open() -> bool:
    """Return whether calls of any function are still compared, or profiled."""
    comparisons = (callee.comparison for callee in tuple(_of_functions.values()))
    return any(each is not None and not each.is_over for each in comparisons)


def count_calls() -> CallCount:
    """Count the calls of what the graph belongs to that arrives on this thread."""
    return _thread.callee or CallCount()


@contextlib.contextmanager
def made(name: bytes, label: str) -> Iterator[None]:
    """Let graphs on this thread belong to an instance of a function that is made.

    XLA compiles it: Grappler gets no graph of it when it is called.
    """
    outer = _thread.callee, _thread.label
    _thread.callee, _thread.label = _function(name), label
    _thread.callee.is_compiled = True
    try:
        yield
    finally:
        _thread.callee, _thread.label = outer


def label_compared(name: bytes) -> str | None:
    """Return that of the plan of a function that is in doubt; None: it is in none."""
    comparison = _function(name).comparison
    return None if comparison is None else comparison.mixed


def keep_compiled(owner: Any, name: bytes, instances: Mapping[str, bytes]) -> None:
    """Call functions in the place of a named one, by label, as long as an owner is."""
    _function(name).instances = instances
    weakref.finalize(owner, _of_functions.pop, name, None).atexit = False


def compiled_in_doubt() -> tuple[bytes, ...]:
    """Name the compiled functions that have two instances."""
    return tuple(name for name, c in tuple(_of_functions.items()) if c.instances)


def called_instance(name: bytes, has_instances: bool) -> bytes:
    """Return what a graph that arrives on this thread calls for a compiled function.

    While that one is in doubt, the steps of what the graph belongs to are compared, and
    decide for it; the graph must have instances itself.
    """
    callee, caller = _function(name), _thread.callee
    comparison = callee.comparison
    if comparison is None:
        return name
    if comparison.is_faster is not None:
        return callee.instance(comparison.winner)
    has_instances = has_instances and functions.has_instances(eager_context())
    if caller is None or caller.is_run or not has_instances:
        return name
    own = caller.comparison
    if own is not None and own.is_late and own.is_faster is None:
        if is_late():
            own.when_decided(comparison.decide)
        return callee.instance(comparison.mixed if is_late() else comparison.float32)
    if _thread.label == comparison.mixed:
        _begun(caller).when_decided(comparison.decide)
    elif _thread.label == MIXED:
        _begin_in_float32(caller)
    return callee.instance(_thread.label)


def accept() -> None:
    """Take a late plan as it is, since its graph is known to be faster."""
    comparison = _current()
    if comparison is not None and is_late():
        comparison.decide(True, Steps())


def is_late() -> bool:
    """Return whether the graph that arrives on this thread has run in float32 before.

    Its plan has waited for the comparison to begin.
    """
    return _thread.label == LATE


def is_waiting() -> bool:
    """Return whether the graph that arrives on this thread is that of calls before."""
    comparison = _current()
    return comparison is not None and comparison.is_late and _thread.label == MIXED


def is_float32_instance() -> bool:
    """Return whether the graph that arrives on this thread is to be left as it is."""
    return _thread.label == FLOAT32


def begin(trial: Trial, decided: Decided, learn: Profiled | None) -> bool:
    """Compare the steps of what the graph belongs to that has just been rewritten.

    Return whether that can be done: it is called on this thread, and has instances. The
    outcome is reported once. If anything is to `learn`, calls are profiled then.
    """
    callee = _with_instances(trial)
    if callee is None:
        return False
    comparison = _begun(callee)
    comparison.when_decided(decided)
    if learn is not None:
        comparison.when_profiled(learn)
    return True


def begin_in_float32(trial: Trial) -> bool:
    """Compare steps as `begin` does, with calls in float32 before.

    So it is where nothing of this thread's call is compared yet, or in float32 so far.
    The plan comes again, as that of another instance, when the comparison begins.
    """
    callee = _with_instances(trial)
    return callee is not None and _begin_in_float32(callee)


def _begin_in_float32(callee: _Callee) -> bool:
    with _lock:
        if callee.comparison is None:
            callee.compare(
                StepComparison(graph_names.name_of_call(callee.name), is_late=True)
            )
        return is_waiting()


def _with_instances(trial: Trial) -> _Callee | None:
    """Return what this thread calls, if two graphs of it may be run in turn."""
    callee = _thread.callee
    return callee if callee is not None and callee.has_instances(trial) else None


def share(agreement: Agreement, *, in_float32: bool = False) -> None:
    """Compare the steps of this thread's call together with other workers.

    `in_float32`: with calls in float32 before.
    """
    callee = _thread.callee
    if callee is not None and not callee.is_run:
        if in_float32:
            _begin_in_float32(callee)
        _begun(callee).share(agreement)


def _begun(callee: _Callee) -> StepComparison:
    """Return the comparison that is going on of something, or a new one."""
    with _lock:
        comparison = callee.comparison
        if comparison is None or comparison.is_faster is not None:
            comparison = callee.compare(
                StepComparison(graph_names.name_of_call(callee.name))
            )
        return comparison


def shares_kernels() -> bool:
    """Return whether instances of this thread's call share the kernels that keep state.

    Those of a Session do, but for the kernels in functions that it calls.
    """
    return _thread.callee is not None and _thread.callee.is_run


def when_decided(decided: Decided) -> None:
    """Report how the comparison ends that this thread's call takes part in."""
    comparison = _current()
    if comparison is not None and comparison.is_faster is None:
        comparison.when_decided(decided)
