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
from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from tf_amp._tensorflow_private import RUN_SESSION
from tf_amp._tensorflow_private.calls import CALL_IN_EAGER_MODE
from tf_amp._tensorflow_private.functions import definitions, executed_graphs
from tf_amp.tools.bench.worker.journal import (
    Journal,
    OpCounts,
    count_ops,
    count_ops_of_graphs,
    leaves,
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

_MOST_LETTERS = 60
_RUN_ARGUMENTS = ("fetches", "feed_dict", "options", "run_metadata")

Method = Callable[..., Any]


def watch(journal: Journal) -> None:
    """Write the steps of this process into a journal, from the imports to come on."""
    calls, batches = _Calls(journal), _Batches(journal)
    runs = _SessionRuns(journal)
    wrap = wrapt.wrap_function_wrapper

    def watch_calls(module: Any) -> None:
        owner = getattr(module, CALL_IN_EAGER_MODE.owner)
        wrap(owner, CALL_IN_EAGER_MODE.method, calls.call)

    def watch_batches(module: Any) -> None:
        owner = module.callbacks.CallbackList
        for kind in KERAS_KINDS:
            begin = functools.partial(batches.proceed, kind)
            wrap(owner, f"on_{kind}_batch_begin", begin)
            wrap(owner, f"on_{kind}_batch_end", batches.end)
        for name in _ENDS:
            wrap(owner, name, functools.partial(batches.proceed, None))

    def watch_runs(module: Any) -> None:
        wrap(getattr(module, RUN_SESSION.owner), RUN_SESSION.method, runs.run)

    wrapt.register_post_import_hook(watch_calls, CALL_IN_EAGER_MODE.module)
    wrapt.register_post_import_hook(watch_runs, RUN_SESSION.module)
    for name in _KERAS:
        wrapt.register_post_import_hook(watch_batches, name)


class _Calls:
    """Watches the method that calls a function in eager mode."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # By name and options: one function may have several instances.
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self._is_looking = False

    def call(
        self, method: Method, context: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Stand for the method, whose first argument is the function's name."""
        journal, name = self._journal, args[0]
        key = name, context.function_call_options.config_proto_serialized
        timed: list[tuple[Any, float, float]] = []

        def run() -> None:
            begin = journal.now()
            outputs = method(*args, **kwargs)
            timed.append((outputs, begin, journal.now()))

        counts: OpCounts | None = None
        if key in self._numbers or self._is_looking:
            run()
        else:
            counts = self._counted(run, context, name)
        if key not in self._numbers:
            self._numbers[key] = journal.function(name.decode(), counts)
        outputs, begin, end = timed[0]
        journal.call(self._numbers[key], begin, end)
        journal.values(name.decode(), outputs)
        return outputs

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


@dataclasses.dataclass
class _Open:
    """A batch whose successor has not begun; `last` is None until it has ended."""

    kind: str
    first: int
    begin: float
    last: int | None = None


class _Batches:
    """Watches Keras' list of callbacks, by standing for its methods.

    A step lasts from the begin of its batch to that of the next, or to the end of the
    loop, so that reading data counts.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._open: _Open | None = None

    def proceed(
        self, kind: str | None, method: Method, owner: Any, args: Any, kwargs: Any
    ) -> Any:
        """Stand for what comes after a batch: the begin of one, None: of none."""
        done, self._open = self._open, None
        # A batch that found the data exhausted has no end.
        if done is not None and done.last is not None:
            count = max(done.last - done.first + 1, 1)
            self._journal.step(done.kind, done.begin, self._journal.now(), count)
        if kind is not None:
            self._open = _Open(kind, args[0], self._journal.now())
        return method(*args, **kwargs)

    def end(self, method: Method, owner: Any, args: Any, kwargs: Any) -> Any:
        if self._open is not None:
            self._open.last = args[0]
            self._look(self._open.kind, *args[1:], **kwargs)
        return method(*args, **kwargs)

    def _look(self, kind: str, logs: Any = None) -> None:
        logs = logs if isinstance(logs, dict) else {}
        found = logs.get("outputs" if kind == "predict" else "loss")
        if found is not None:
            self._journal.values(kind, found)


class _SessionRuns:
    """Watches the method that runs a Session, each list of fetches as a function.

    The graph that is executed is asked for at runs 1, 2, 4, 8 and so on, as tf-amp may
    take another one after a while.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._counts: Counter[tuple[int, str]] = Counter()
        self._numbers: dict[tuple[int, str], int] = {}

    def run(self, method: Method, session: Any, args: Any, kwargs: Any) -> Any:
        """Stand for the method; its arguments are those of `Session.run`."""
        journal = self._journal
        given = dict(zip(_RUN_ARGUMENTS, args, strict=False)) | kwargs
        fetches, feed_dict, options, metadata = map(given.get, _RUN_ARGUMENTS)
        name = ", ".join(_names(fetches))[:_MOST_LETTERS]
        key = (id(session), name)
        self._counts[key] += 1
        count = self._counts[key]
        is_asked = not count & (count - 1) and options is metadata is None
        if is_asked:
            from tensorflow.core.protobuf import config_pb2

            options = config_pb2.RunOptions(output_partition_graphs=True)
            metadata = config_pb2.RunMetadata()
        begin = journal.now()
        found = method(fetches, feed_dict, options, metadata)
        end = journal.now()
        if is_asked or count == 1:
            with journal.looking():
                # Without metadata it is unknown what is executed.
                graphs = metadata.partition_graphs if is_asked else None
                counts = count_ops_of_graphs(graphs) if graphs else None
                self._numbers[key] = journal.function(name, counts)
        journal.values(name, found)
        journal.call(self._numbers[key], begin, end)
        return found


def _names(fetches: Any) -> Iterator[str]:
    for each in leaves(fetches):
        if each is not None:
            yield str(getattr(each, "name", each)).partition(":")[0]
