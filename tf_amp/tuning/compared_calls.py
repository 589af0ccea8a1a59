"""Which calls of which functions take part in comparisons of steps.

Wraps the method of TensorFlow that calls functions in eager mode. A graph arrives on
the thread of the call that needs it, so that the thread tells whose graph it is, and
for which instance.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from grappler_pass.fork_safety import renewed_lock
from tf_amp._tensorflow_private import calls
from tf_amp.tuning.step_comparison import (
    FLOAT32,
    MIXED,
    MOST_PLANS,
    OWN_FAULTS,
    Decided,
    StepComparison,
)


class _Thread(threading.local):
    """What a thread calls, and in which instance."""

    name: bytes | None = None
    label: str = MIXED


_thread = _Thread()
_lock = renewed_lock()
# By name of a function, which TensorFlow gives once in a process.
_comparisons: dict[bytes, StepComparison] = {}


def comparing(call_function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method that calls a function in eager mode."""

    @functools.wraps(call_function)
    def call_in_turn(context: Any, name: bytes, *args: Any, **kwargs: Any) -> Any:
        def call(label: str) -> Any:
            with calls.in_instance(context, label):
                return _called(name, label, call_function, context, *args, **kwargs)

        comparison = _comparisons.get(name)
        if comparison is None:
            try:
                return _called(name, MIXED, call_function, context, *args, **kwargs)
            except OWN_FAULTS:
                # It may have begun with this call.
                comparison = _comparisons.get(name)
                if comparison is None:
                    raise
                return comparison.failed(call)
        if comparison.is_faster and comparison.mixed == MIXED:
            _comparisons.pop(name, None)
        outputs = comparison.run(call)
        if comparison.may_go_on and comparison.number < MOST_PLANS:
            comparison.may_go_on = False
            _comparisons[name] = StepComparison(comparison.number + 1, name.decode())
        return outputs

    return call_in_turn


def _called(
    name: bytes,
    label: str,
    call_function: Callable[..., Any],
    context: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a function, and tell the graphs that arrive meanwhile which it is."""
    outer = _thread.name, _thread.label
    _thread.name, _thread.label = name, label
    try:
        return call_function(context, name, *args, **kwargs)
    finally:
        _thread.name, _thread.label = outer


def _current() -> StepComparison | None:
    """Return the comparison that this thread's call takes part in."""
    return None if _thread.name is None else _comparisons.get(_thread.name)


def accept() -> None:
    """Take another plan as it is, since its graph is known to be faster."""
    comparison = _current()
    if comparison is not None and is_another_plan():
        comparison.is_faster = True


def is_another_plan() -> bool:
    """Tell whether the graph that arrives on this thread had a plan that has lost."""
    return _thread.label not in (MIXED, FLOAT32)


def is_float32_instance() -> bool:
    """Tell whether the graph that arrives on this thread is to be left as it is."""
    return _thread.label == FLOAT32


def begin(decided: Decided) -> bool:
    """Compare the steps of the function whose graph has just been rewritten.

    Args:
      decided: called once with the outcome.

    Returns:
      Whether that can be done: the function is called in eager mode on this thread.
    """
    from tensorflow.python.eager import context

    name = _thread.name
    if name is None or not calls.has_instances(context.context()):
        return False
    with _lock:
        if name not in _comparisons or _comparisons[name].is_faster is not None:
            _comparisons[name] = StepComparison(name=name.decode())
        comparison = _comparisons[name]
    comparison.when_decided(decided)
    return True


def when_decided(decided: Decided) -> None:
    """Have told how the comparison ends that this thread's call takes part in."""
    comparison = _current()
    if comparison is not None and comparison.is_faster is None:
        comparison.when_decided(decided)
