"""What becomes of a rewrite that fails: a warning, and an error under strict settings.

TensorFlow ignores an optimizer's errors, so the error is kept and raised by the Python
call that caused it, as soon as that ends. Nearly every graph is rewritten on the thread
of its call. What the runtime rewrites on a thread of its own may belong to any call
that is under way, and all of these raise it. What fails outside of calls, as do
functions that XLA is to compile, is raised by the next call of the function.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from absl import logging

from grappler_pass.errors import StageError
from grappler_pass.fork_safety import per_process
from tf_amp._tensorflow_private import wrapping
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import RewriteError
from tf_amp.message_codes import Code
from tf_amp.rewriting import dumps, host
from tf_amp.tracing.graph_names import name_of
from tf_amp.tracing.stamp_reader import main_settings

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

_FLOAT32 = "stays float32"


@dataclasses.dataclass(eq=False)
class _Call:
    """A call under way, and what has failed in it."""

    thread: int
    failures: list[str] = dataclasses.field(default_factory=list)

    def keep(self, message: str) -> None:
        # Grappler comes a second time with the graph that it has optimized once more.
        if message not in self.failures:
            self.failures.append(message)


# Of all threads. A call goes on, and fails, when its settings are in force no more.
_under_way: list[_Call] = []


def report(
    error: Exception,
    graph: str,
    *,
    config: AmpConfig,
    before: Callable[[], GraphDef],
    outcome: str = _FLOAT32,
) -> None:
    """Warn once that a graph was not rewritten, and keep that under strict settings.

    Args:
      error: the cause.
      graph: its name.
      config: whether calls raise, and where graphs are written.
      before: returns the graph as it was.
      outcome: what becomes of the graph.
    """
    cause = error if hasattr(error, "stage") else f"{type(error).__name__}: {error}"
    message = f"graph {graph!r} {outcome}: {cause}"
    if host.current().is_news(message):
        text = Code.REWRITE_FAILED.ends(message)
        logging.warning("%s", text, exc_info=error if config.strict else None)
    if config.strict:
        under_way = tuple(_under_way)
        own = [call for call in under_way if call.thread == threading.get_ident()]
        for call in own[-1:] or under_way:
            call.keep(message)
        if not under_way:
            host.current().awaiting[graph] = message
    if config.log_dir is not None:
        log = dumps.FolderLog(config.log_dir, config.verbose)
        log.add_failed(graph, before, error)


@contextlib.contextmanager
def naming_stage(stage: str) -> Iterator[None]:
    """Name a stage in what is raised, unless that names one already."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StageError):
            raise
        raise StageError(stage, error) from error


@contextlib.contextmanager
def reporting(stage: str, graph: bytes, outcome: str) -> Iterator[None]:
    """Report what fails in a stage on a serialized GraphDef, and go on."""
    try:
        with naming_stage(stage):
            yield
    except Exception as error:
        from tensorflow.core.framework.graph_pb2 import GraphDef

        try:
            name, settings = main_settings(graph)
        except Exception:
            # It cannot be read.
            name, settings = "", None
        scope = scope_registry.scope_of(settings or "")
        config = scope.config if scope else scope_registry.base_config()
        before = functools.partial(GraphDef.FromString, graph)
        report(error, name, config=config, before=before, outcome=outcome)


@wrapping
def raising(call: Callable[..., Any], owner: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a method, and raise what fails in a rewrite that the call has caused.

    An error of the call itself is chained to it. Used for strict settings, on what runs
    functions and Sessions.
    """
    if awaiting := host.current().awaiting:
        # What failed before this call. So a ConcreteFunction, or a Session's graph, is
        # called in reports.
        name = getattr(owner, "name", b"")
        name = name.decode() if isinstance(name, bytes) else str(name)
        for each in (name, name_of(owner.graph)):
            message = awaiting.pop(each, None)
            if message is not None:
                raise RewriteError(message)
    own = _Call(threading.get_ident())
    _under_way.append(own)
    try:
        result = call(owner, *args, **kwargs)
    except Exception as error:
        if own.failures:
            # TensorFlow drops the cause on the way to the user.
            own.keep(f"The call then failed: {type(error).__name__}: {error}")
            raise RewriteError("\n".join(own.failures)) from error
        raise
    finally:
        _under_way.remove(own)
    if own.failures:
        raise RewriteError("\n".join(own.failures))
    return result


def _forget_other_threads() -> None:
    """Forget calls that threads of the parent were in when it forked."""
    _under_way[:] = (c for c in _under_way if c.thread == threading.get_ident())


per_process(_forget_other_threads)
