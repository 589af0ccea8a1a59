"""Call functions and Sessions in one instance or another; know whose graph arrives.

Wraps the methods of TensorFlow that call functions in eager mode, and that run a graph
in a Session. A graph arrives on the thread of the call that needs it, so that the
thread knows at which site it is called, and for which instance: its `Entry`.

A Session keeps what it has optimized by the names of feeds, fetches and targets: a
target that is named again makes another instance. Instances share variables, queues,
iterators and all kernels of stateful ops, by the names of their nodes, so that seeded
random draws go on in one stream; only those within functions that are not inlined are
each instance's own. A plan that changes the type of such a kernel is not compared.
Partial runs, `make_callable`, and Sessions on a server, whose graphs arrive elsewhere,
follow their prices.

A site is forgotten with its function or Session. What is not called any more is not
compared any more: its graphs would stay for ever.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from grappler_pass.fork_safety import renewed_lock
from grappler_pass.graph.op_traits import keeps_kernel
from tf_amp._tensorflow_private import eager_context, functions
from tf_amp.compare.compiled_steps import CompiledSteps
from tf_amp.compare.own_steps import (
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
    from grappler_pass.planning.draft import Outcome, Trial

# A comparison ends undecided when its site is not called for so long while others
# begin, or when so many others have begun after its last call.
MOST_IDLE_SECONDS, MOST_UNDECIDED = 300.0, 64


@dataclasses.dataclass(eq=False, slots=True)
class CallSite:
    """A function, or a run of a Session, that is called in one instance or another.

    Attributes:
      key: of a function its name, of a run what is fed, fetched and run.
      is_run: whether it is a run.
      count: how often it has been called.
      is_new: whether it is called for the first time, as far as is known.
      comparison: that it takes part in.
      instances: by label, the names of a compiled function's instances.
      whole: the name of its copy that XLA compiles as a whole, once there is one.
      compiling: each begins to compare what runs, by its label, with what XLA compiles
        of it, or returns None; those that have not begun yet.
    """

    key: Hashable = None
    is_run: bool = False
    count: int = 0
    is_new: bool = True
    comparison: StepComparison | None = None
    instances: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    whole: bytes = b""
    compiling: tuple[Callable[[str], CompiledSteps | None], ...] = ()

    @property
    def name(self) -> str:
        """As TensorFlow calls a function; "" of a run."""
        return "" if self.is_run else self.key.decode()  # type: ignore[attr-defined]

    def instance(self, label: str) -> bytes:
        """Return the name of the function that is called for a label."""
        if label == functions.WHOLE:
            return self.whole
        return self.instances.get(label, self.key)  # type: ignore[arg-type]

    def has_instances(self, trial: Trial) -> bool:
        """Return whether two graphs may be run in turn."""
        if not self.is_run:
            return functions.has_instances(eager_context())
        # Nodes that share a kernel, by name, must make the same one.
        kernels = {
            n.name: _kernel_of(n) for n in trial.before.node if keeps_kernel(n.op)
        }
        after = {node.name: node for node in trial.after.node}
        both = kernels.keys() & after.keys()
        return all(_kernel_of(after[name]) == kernels[name] for name in both)

    def compare(self, *, in_float32: bool = False) -> StepComparison:
        """Return the comparison that is going on, or begin one.

        `in_float32`: with calls in float32 before, unless one is over already.
        """
        with _lock:
            comparison = self.comparison
            if isinstance(comparison, CompiledSteps):
                # What is compiled belongs to an earlier graph.
                comparison = None
            is_over = comparison is not None and comparison.is_faster is not None
            if comparison is None or (is_over and not in_float32):
                _end_idle_comparisons()
                name = graph_names.name_of_call(self.name)
                comparison = StepComparison(name, is_late=in_float32)
                self.comparison = comparison
            return comparison

    def call_in_turn(self, call: Callable[[str], Any]) -> Any:
        """Make a call, given its label, in the instance whose turn it is."""
        self.count += 1
        comparison = self.comparison
        waiting, is_free = self.compiling, comparison is None or comparison.is_over
        if waiting and is_free:
            begin, *others = waiting
            self.compiling = tuple(others)
            label = MIXED if comparison is None else comparison.winner
            comparison = self.comparison = begin(label) or comparison
        if comparison is None:
            try:
                return call(MIXED)
            except OWN_FAULTS as error:
                return self.call_again(call, error)
        if comparison.is_over and comparison.winner == MIXED:
            self.comparison = None
        return comparison.run(call)

    def call_again(self, call: Callable[[str], Any], error: Exception) -> Any:
        """Make a call that has failed in float32, if a comparison has begun with it."""
        comparison = self.comparison
        if comparison is None or comparison.is_shared or comparison.is_late:
            raise error
        return comparison.without(comparison.mixed, call)


class Entry(NamedTuple):
    """The call of a thread, and its instance: the owner of a graph that arrives on it.

    Attributes:
      site: None outside of calls.
      label: of the instance.
    """

    site: CallSite | None = None
    label: str = MIXED

    @property
    def comparison(self) -> StepComparison | None:
        """The comparison of 16 bits that the call takes part in."""
        comparison = None if self.site is None else self.site.comparison
        return None if isinstance(comparison, CompiledSteps) else comparison

    @property
    def is_compiled(self) -> bool:
        """True if XLA is to compile the graph, or parts of it."""
        return self.label in (functions.CLUSTERED, functions.WHOLE)

    @property
    def is_float32(self) -> bool:
        """True if the graph is to be left unchanged."""
        return self.label == FLOAT32

    @property
    def is_late(self) -> bool:
        """True if the graph has run in float32 before.

        Its plan has waited for the comparison to begin.
        """
        return self.label == LATE

    @property
    def is_waiting(self) -> bool:
        """True if the graph is that of calls in float32 before."""
        comparison = self.comparison
        return comparison is not None and comparison.is_late and self.label == MIXED

    def begin(self, trial: Trial, decided: Decided, learn: Profiled | None) -> Outcome:
        """Compare the steps of what the graph belongs to that has just been rewritten.

        That can be done where it is called on this thread, and has instances. The
        outcome is reported once. If anything is to `learn`, calls are profiled.

        A plan that is not sure is withheld where nothing of this call is compared yet,
        or in float32 so far: it comes again, as that of another instance, when the
        comparison begins.
        """
        from grappler_pass.planning.draft import Outcome

        if self.site is None or self.is_compiled:
            return Outcome.UNKNOWN
        if not self.site.has_instances(trial):
            return Outcome.UNKNOWN
        if not trial.is_sure:
            self.site.compare(in_float32=True)
            if self.is_waiting:
                return Outcome.WITHHELD
        comparison = self.site.compare()
        comparison.when_decided(decided)
        if learn is not None:
            comparison.when_profiled(learn)
        return Outcome.OPEN

    def share(self, agreement: Agreement, *, in_float32: bool = False) -> None:
        """Compare the steps of this call together with other workers.

        `in_float32`: with calls in float32 before.
        """
        if self.site is not None and not self.site.is_run:
            if in_float32:
                self.site.compare(in_float32=True)
            self.site.compare().share(agreement)

    def accept(self) -> None:
        """Take a late plan unchanged, since its graph is known to be faster."""
        comparison = self.comparison
        if comparison is not None and self.is_late:
            comparison.decide(True, Steps())

    def when_decided(self, decided: Decided) -> None:
        """Report how the comparison ends that the call takes part in."""
        comparison = self.comparison
        if comparison is not None and comparison.is_faster is None:
            comparison.when_decided(decided)

    def instance_of(self, name: bytes, *, has_instances: bool) -> bytes:
        """Return the name that the graph calls for a function that XLA compiles.

        While that one is undecided, the steps of what the graph belongs to are
        compared, and decide for it; the graph must have instances itself.
        """
        called, comparison = function_site(name), function_site(name).comparison
        if comparison is None:
            return name
        if comparison.is_faster is not None:
            return called.instance(comparison.winner)
        has_instances = has_instances and functions.has_instances(eager_context())
        if self.site is None or self.site.is_run or not has_instances:
            return name
        own = self.comparison
        if own is not None and own.is_late and own.is_faster is None:
            if self.is_late:
                own.when_decided(comparison.decide)
            label = comparison.mixed if self.is_late else comparison.float32
            return called.instance(label)
        if self.label == comparison.mixed:
            self.site.compare().when_decided(comparison.decide)
        elif self.label == MIXED:
            self.site.compare(in_float32=True)
        return called.instance(self.label)


class _ThreadEntry(threading.local):
    """The innermost call of each thread."""

    entry: Entry = Entry()


_thread = _ThreadEntry()
_lock = renewed_lock()
# By name of a function, which TensorFlow gives once in a process.
_functions: dict[bytes, CallSite] = {}
_sessions: weakref.WeakKeyDictionary[Any, dict[Hashable, CallSite]] = (
    weakref.WeakKeyDictionary()
)


def current() -> Entry:
    """Return the call of this thread, which a graph on it belongs to."""
    return _thread.entry


def call_as(
    site: CallSite, label: str, call: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call something, and let the graphs that arrive meanwhile know what it is."""
    outer, _thread.entry = _thread.entry, Entry(site, label)
    try:
        return call(*args, **kwargs)
    finally:
        _thread.entry = outer


def function_site(name: bytes) -> CallSite:
    """Return the site of a function by the name that the runtime knows it by."""
    return _functions.get(name) or _functions.setdefault(name, CallSite(name))


def forget_with(owner: Any, name: bytes) -> None:
    """Forget the site of a function when its owner, its graph as traced, is gone."""

    def forget() -> None:
        site = _functions.pop(name, None)
        if site is not None:
            # Others may go on counting its calls.
            site.comparison = None

    weakref.finalize(owner, forget).atexit = False


def all_sites() -> Iterable[CallSite]:
    """Return all sites of this moment."""
    of_sessions = [tuple(each.values()) for each in tuple(_sessions.values())]
    return itertools.chain(tuple(_functions.values()), *of_sessions)


def is_any_open() -> bool:
    """Return whether calls of any function are still compared, or profiled."""
    comparisons = (site.comparison for site in tuple(_functions.values()))
    return any(each is not None and not each.is_over for each in comparisons)


def decide_calls() -> bool:
    """Return whether comparisons, open or decided, say what calls of functions run."""
    return any(
        site.comparison or site.instances or site.compiling
        for site in [*_functions.values()]
    )


def undecided_compiled() -> tuple[bytes, ...]:
    """Name the compiled functions that have two instances."""
    return tuple(name for name, c in tuple(_functions.items()) if c.instances)


def _end_idle_comparisons() -> None:
    """End what is not called any more; workers end theirs together."""
    undecided = [
        (site.comparison.last_call, site)
        for site in all_sites()
        if site.comparison is not None
        and site.comparison.is_faster is None
        and not site.comparison.is_shared
    ]
    undecided.sort(key=lambda row: row[0], reverse=True)
    oldest = time.monotonic() - MOST_IDLE_SECONDS
    for number, (last_call, site) in enumerate(undecided):
        if last_call < oldest or number >= MOST_UNDECIDED - 1:
            site.comparison = None


def comparing_calls(
    call_function: Callable[..., Any], first_called: Callable[[Any, bytes], None]
) -> Callable[..., Any]:
    """Wrap the method that calls a function in eager mode.

    Something is done at its first call, or the first since the site is new again.
    """

    @functools.wraps(call_function)
    def call_in_turn(context: Any, name: bytes, *args: Any, **kwargs: Any) -> Any:
        site = _functions.get(name) or function_site(name)
        if site.is_new:
            site.is_new = False
            first_called(context, name)

        def call(label: str, way: Callable[..., Any] | None = None) -> Any:
            instance = site.instance(label)
            function = call_function if way is None else way(call_function)
            with functions.in_instance(context, label):
                return call_as(
                    site, label, function, context, instance, *args, **kwargs
                )

        if site.comparison or site.instances or site.compiling:
            return site.call_in_turn(call)
        # So are nearly all calls; each Python function on their way takes up to 1 us.
        site.count += 1
        try:
            return call_as(site, MIXED, call_function, context, name, *args, **kwargs)
        except OWN_FAULTS as error:
            return site.call_again(call, error)

    return call_in_turn


def comparing_runs(
    run: Callable[..., Any],
    times_changed: Callable[[Any], int],
    first_called: Callable[[Any], None],
) -> Callable[..., Any]:
    """Wrap the method that runs a graph in a Session.

    The graph is optimized again, too, as often as its settings have changed. Something
    is done at the first run, as with functions.
    """

    @functools.wraps(run)
    def run_in_turn(
        session: Any, handle: Any, targets: Any, fetches: Any, feeds: Any, *args: Any
    ) -> Any:
        if handle is not None:
            return run(session, handle, targets, fetches, feeds, *args)
        optimized = times_changed(session.graph) * len(LABELS)
        names = (frozenset(t.ref() for t in fetches), frozenset(targets))
        key = (frozenset(feeds), *names)
        of_session = _sessions.setdefault(session, {})
        site = of_session.setdefault(key, CallSite(key, is_run=True))
        if site.is_new:
            site.is_new = False
            first_called(session)

        def call(label: str) -> Any:
            number = optimized + LABELS.index(label)
            again = functions.targets_of_instance(number, targets, fetches)
            return call_as(
                site, label, run, session, None, again, fetches, feeds, *args
            )

        return site.call_in_turn(call)

    return run_in_turn


def _kernel_of(node: Any) -> tuple[str, dict[str, Any]]:
    attrs = {name: node.attr[name] for name in node.attr if not name.startswith("_")}
    return node.op, attrs
