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

from grappler_pass.costs.records import Verdict
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
from tf_amp.tuning.verdict_check import VerdictCheck


class _Thread(threading.local):
    """What a thread calls, and in which instance."""

    name: bytes | None = None
    label: str = MIXED


_thread = _Thread()
_lock = renewed_lock()
# By name of a function, which TensorFlow gives once in a process.
_comparisons: dict[bytes, StepComparison] = {}
_checks: dict[bytes, VerdictCheck] = {}


def comparing(call_function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method that calls a function in eager mode."""

    @functools.wraps(call_function)
    def call_in_turn(context: Any, name: bytes, *args: Any, **kwargs: Any) -> Any:
        def call(label: str) -> Any:
            with calls.in_instance(context, label):
                return _called(name, label, call_function, context, *args, **kwargs)

        comparison = _comparisons.get(name)
        if comparison is None:
            check = _checks.get(name)
            try:
                if check is not None:
                    return _checked(name, check, call)
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


def _checked(name: bytes, check: VerdictCheck, call: Callable[[str], Any]) -> Any:
    outputs = check.run(call)
    if check.is_over:
        _checks.pop(name, None)
    return outputs


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
    name = _instantiated()
    if name is None:
        return False
    with _lock:
        if name not in _comparisons or _comparisons[name].is_faster is not None:
            _comparisons[name] = StepComparison(name=name.decode())
        comparison = _comparisons[name]
    comparison.when_decided(decided)
    return True


def check(verdict: Verdict, decided: Decided, forget: Callable[[], None]) -> None:
    """Compare the function of this thread's call anew if steps contradict a verdict.

    Where float32 is remembered, there is no instance in 16 bits. It is made as that of
    a next plan is, the first one having lost.

    Args:
      verdict: that is remembered, of the graph that has just arrived.
      decided: called once with the outcome, if the instances are compared anew.
      forget: called before that.
    """
    name = _instantiated()
    if name is None or is_another_plan():
        return

    def contradicted() -> None:
        forget()
        text = name.decode()
        comparison = StepComparison(1 if verdict.faster else 2, text)
        for each in checked.decided if verdict.faster else ():
            comparison.when_decided(each)
        _comparisons[name] = comparison

    checked = _checks[name] = VerdictCheck(verdict, contradicted)
    checked.decided.append(decided)


def when_decided(decided: Decided) -> None:
    """Have a function called with the outcome of what this thread's call is part of."""
    comparison = _current()
    if comparison is not None and comparison.is_faster is None:
        comparison.when_decided(decided)
    elif comparison is None and _thread.name in _checks:
        _checks[_thread.name].decided.append(decided)


def _instantiated() -> bytes | None:
    """Name the function of this thread's call, if it may have several instances."""
    from tensorflow.python.eager import context

    name = _thread.name
    has_instances = name is not None and calls.has_instances(context.context())
    return name if has_instances else None
