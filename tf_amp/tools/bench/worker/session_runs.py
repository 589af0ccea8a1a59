"""Watch the runs of Sessions, each list of fetches as if it were a function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tf_amp.tools.bench.worker.executed_ops import count_ops_of_graphs
from tf_amp.tools.bench.worker.journal import COMPARED_STEPS, Journal
from tf_amp.tools.bench.worker.sampled import sampled_values

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
