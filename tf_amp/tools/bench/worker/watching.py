"""Watch the steps of a program that knows nothing of it.

Three things are watched once TensorFlow and Keras are imported: the batches of Keras'
`fit`, `evaluate` and `predict`; every call of a function in eager mode, of which the
first shows the graph that is executed; and the runs of Sessions.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import wrapt

from tf_amp._tensorflow_private import RUN_SESSION
from tf_amp._tensorflow_private.calls import CALL_IN_EAGER_MODE
from tf_amp._tensorflow_private.executed import definitions, executed_graphs
from tf_amp.tools.bench.worker.journal import (
    COMPARED_STEPS,
    Journal,
    OpCounts,
    count_ops,
    count_ops_of_graphs,
    sampled_values,
)

KERAS_KINDS = ("train", "test", "predict")
_KERAS = ("keras", "tf_keras")
# Whatever comes next after a loop's last batch.
_ENDS = (
    "on_epoch_end",
    "on_train_end",
    "on_test_begin",
    "on_test_end",
    "on_predict_end",
)

Method = Callable[..., Any]


def watch(journal: Journal) -> None:
    """Write the steps of this process into a journal, from the imports to come on."""
    calls, batches = _Calls(journal), _Batches(journal)
    runs = SessionRuns(journal)

    def watch_calls(module: Any) -> None:
        owner = getattr(module, CALL_IN_EAGER_MODE.owner)
        _wrap(owner, CALL_IN_EAGER_MODE.method, calls.watching)

    def watch_batches(module: Any) -> None:
        owner = module.callbacks.CallbackList
        for kind in KERAS_KINDS:
            begin = functools.partial(batches.beginning, kind)
            _wrap(owner, f"on_{kind}_batch_begin", begin)
            _wrap(owner, f"on_{kind}_batch_end", batches.ending)
        for name in _ENDS:
            _wrap(owner, name, batches.closing)

    def watch_runs(module: Any) -> None:
        _wrap(getattr(module, RUN_SESSION.owner), RUN_SESSION.method, runs.watching)

    wrapt.register_post_import_hook(watch_calls, CALL_IN_EAGER_MODE.module)
    wrapt.register_post_import_hook(watch_runs, RUN_SESSION.module)
    for name in _KERAS:
        wrapt.register_post_import_hook(watch_batches, name)


def _wrap(owner: Any, name: str, wrap: Callable[[Method], Method]) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


class _Calls:
    """Watches the method that calls a function in eager mode."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # By name and options: one function may have several instances.
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self._compared: Counter[bytes] = Counter()
        self._is_looking = False

    def watching(self, call_function: Method) -> Method:
        journal = self._journal

        @functools.wraps(call_function)
        def call(context: Any, name: bytes, *args: Any, **kwargs: Any) -> Any:
            options = context.function_call_options.config_proto_serialized
            number = self._numbers.get((name, options))
            is_new = number is None
            if number is None:
                number = len(self._numbers)
                self._numbers[name, options] = number
            run = functools.partial(call_function, context, name, *args, **kwargs)
            if is_new:
                outputs, begin, end = self._first(number, context, name, run)
            else:
                begin = journal.now()
                outputs = run()
                end = journal.now()
            journal.call(number, begin, end)
            self._compare(name, outputs)
            return outputs

        return call

    def _first(
        self, number: int, context: Any, name: bytes, run: Callable[[], Any]
    ) -> tuple[Any, float, float]:
        """Run the first call of an instance, and write what it executes."""
        journal, timed = self._journal, []

        def timed_run() -> None:
            begin = journal.now()
            outputs = run()
            timed.append((outputs, begin, journal.now()))

        counts: OpCounts | None = None
        try:
            if self._is_looking:
                timed_run()
            else:
                counts = self._counted(timed_run, context, name)
        finally:
            # A call may fail, and the next one not.
            journal.function(number, name.decode(), counts)
        return timed[0]

    def _counted(self, run: Callable[[], None], context: Any, name: bytes) -> OpCounts:
        self._is_looking = True
        try:
            graphs = executed_graphs(run)
        finally:
            self._is_looking = False
        with self._journal.looking():
            if graphs:
                return count_ops_of_graphs(graphs)
            nodes = (each.node_def for each in definitions(context, name))
            return count_ops(itertools.chain.from_iterable(nodes))

    def _compare(self, name: bytes, outputs: Any) -> None:
        self._compared[name] += 1
        if self._compared[name] <= COMPARED_STEPS:
            with self._journal.looking():
                self._journal.values(name.decode(), sampled_values(outputs))


@dataclasses.dataclass
class _Open:
    """A batch whose successor has not begun; `last` is None until it has ended."""

    kind: str
    first: int
    begin: float
    last: int | None = None


class _Batches:
    """Watches Keras' list of callbacks.

    A step lasts from the begin of its batch to that of the next, or to the end of the
    loop, so that reading data counts.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._open: _Open | None = None
        self._compared: Counter[str] = Counter()

    def beginning(self, kind: str, method: Method) -> Method:
        @functools.wraps(method)
        def begin(callbacks: Any, batch: int, *args: Any, **kwargs: Any) -> Any:
            self._close()
            self._open = _Open(kind, batch, self._journal.now())
            return method(callbacks, batch, *args, **kwargs)

        return begin

    def ending(self, method: Method) -> Method:
        @functools.wraps(method)
        def end(callbacks: Any, batch: int, logs: Any = None) -> Any:
            if self._open is not None:
                self._open.last = batch
                self._compare(self._open.kind, logs)
            return method(callbacks, batch, logs)

        return end

    def closing(self, method: Method) -> Method:
        @functools.wraps(method)
        def close(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
            self._close()
            return method(callbacks, *args, **kwargs)

        return close

    def _close(self) -> None:
        done, self._open = self._open, None
        # A batch that found the data exhausted has no end.
        if done is not None and done.last is not None:
            count = max(done.last - done.first + 1, 1)
            self._journal.step(done.kind, done.begin, self._journal.now(), count)

    def _compare(self, kind: str, logs: Any) -> None:
        self._compared[kind] += 1
        if self._compared[kind] > COMPARED_STEPS:
            return
        with self._journal.looking():
            logs = logs if isinstance(logs, dict) else {}
            found = logs.get("outputs" if kind == "predict" else "loss")
            if found is not None:
                self._journal.values(kind, sampled_values(found))


_MOST_LETTERS = 60
# Functions are numbered from 0.
_NUMBERS_FROM = 1_000_000


class SessionRuns:
    """Watches the method that runs a Session.

    The graph that is executed is asked for at runs 1, 2, 4, 8 and so on, as tf-amp may
    take another one after a while.
    """

    def __init__(self, journal: Journal) -> None:
        """Write into a journal."""
        self._journal = journal
        self._counts: dict[tuple[int, str], int] = {}
        self._numbers: dict[tuple[int, str], int] = {}
        self._next = _NUMBERS_FROM

    def watching(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method."""
        journal = self._journal

        @functools.wraps(method)
        def run(
            session: Any,
            fetches: Any,
            feed_dict: Any = None,
            options: Any = None,
            run_metadata: Any = None,
        ) -> Any:
            name = ", ".join(_names(fetches))[:_MOST_LETTERS]
            key = (id(session), name)
            count = self._counts[key] = self._counts.get(key, 0) + 1
            is_asked = not count & (count - 1) and options is run_metadata is None
            if is_asked:
                options, run_metadata = _requests()
            begin = journal.now()
            found = method(session, fetches, feed_dict, options, run_metadata)
            end = journal.now()
            with journal.looking():
                if is_asked or count == 1:
                    self._look(key, run_metadata if is_asked else None)
                if count <= COMPARED_STEPS:
                    journal.values(name, sampled_values(found))
            journal.call(self._numbers[key], begin, end)
            return found

        return run

    def _look(self, key: tuple[int, str], metadata: Any) -> None:
        """Write what a run has executed; without metadata that is unknown."""
        self._numbers[key] = self._next
        graphs = metadata and metadata.partition_graphs
        counts = count_ops_of_graphs(graphs) if graphs else None
        self._journal.function(self._next, key[1], counts)
        self._next += 1


def _requests() -> tuple[Any, Any]:
    """Return options that ask for executed graphs, and what they are returned in."""
    from tensorflow.core.protobuf import config_pb2

    return config_pb2.RunOptions(output_partition_graphs=True), config_pb2.RunMetadata()


def _names(fetches: Any) -> Iterator[str]:
    if isinstance(fetches, Mapping):
        fetches = [*fetches.values()]
    if isinstance(fetches, list | tuple):
        for each in fetches:
            yield from _names(each)
    elif fetches is not None:
        yield str(getattr(fetches, "name", fetches)).partition(":")[0]
