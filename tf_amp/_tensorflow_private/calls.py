"""TensorFlow's private names around calls of functions, and runs of a Session's graph.

TensorFlow makes an instance of a function, optimized by itself, for each ConfigProto
that comes with its calls in eager mode. One function can so be run rewritten and as it
was, call by call, on the same variables. A Session makes one for each list of feeds,
fetches and targets.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from tf_amp._tensorflow_private import Hook, warn_once

_CONTEXT = "tensorflow.python.eager.context"
_WITHOUT = "predictions alone decide whether 16 bits are used"
CALL_IN_EAGER_MODE = Hook(f"{_CONTEXT}:Context.call_function", _WITHOUT)
_SESSION = "tensorflow.python.client.session"
RUN_IN_SESSION = Hook(f"{_SESSION}:BaseSession._do_run", _WITHOUT)
# Made once: each call of a function is within one.
_UNLABELLED = contextlib.nullcontext()


def in_instance(context: Any, label: str) -> AbstractContextManager[None]:
    """Let this thread call the instances of functions that belong to a label.

    The eager context has those without a label that are called without this.
    """
    return _Labelled(context, label) if label else _UNLABELLED


class _Labelled(AbstractContextManager[None]):
    """Takes half as long as a generator would: small functions are called so."""

    __slots__ = ("_context", "_given", "_label")

    def __init__(self, context: Any, label: str) -> None:
        self._context, self._label = context, label

    def __enter__(self) -> None:
        self._given = given = self._context.function_call_options
        self._context.function_call_options = _labelled(
            given.config_proto_serialized, self._label
        )

    def __exit__(self, *error: object) -> None:
        self._context.function_call_options = self._given


def has_instances(context: Any) -> bool:
    """Return whether functions may have several instances, and calls are awaited."""
    try:
        _labelled(context.function_call_options.config_proto_serialized, "any")
        return not context.is_async()
    except (AttributeError, TypeError, ValueError):
        warn_once("Context.function_call_options", _WITHOUT)
        return False


def targets_of_instance(
    number: int, targets: Sequence[Any], fetches: Sequence[Any]
) -> list[Any]:
    """Return what to run, besides fetches, so that a numbered instance of a graph runs.

    Of the instances that a Session makes, 0 is the one that is run without this. There
    may be no fetches if there are targets.
    """
    if not number:
        return [*targets]
    named = [*targets, *(fetch.op for fetch in fetches)]
    return [*targets, *[named[0]] * number]


@functools.lru_cache(maxsize=16)
def _labelled(config: bytes, label: str) -> Any:
    """Return options of calls that differ from others in a name that nothing reads."""
    from tensorflow.core.protobuf import config_pb2

    labelled = config_pb2.ConfigProto.FromString(config)
    labelled.experimental.session_metadata.name = f"tf_amp {label}"
    options = importlib.import_module(_CONTEXT).FunctionCallOptions
    return options(config_proto=labelled)
