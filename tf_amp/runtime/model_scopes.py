"""Scopes and changes that hold for a model while its methods run.

Models that were compiled in a scope train in it, wherever `fit` is called; a scope
around `fit` itself goes before the one around `compile`. And what is changed on a model
for one call of `fit` is put back when that ends, however it does.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tf_amp._tensorflow_private import acting_after, tracing, wrapping
from tf_amp._tensorflow_private import install as install_hooks
from tf_amp.tracing import stack as scope_stack

_TRAINING = ("fit", "train_on_batch")


@dataclasses.dataclass
class _Model:
    """The calls, scopes and changes of one model.

    Attributes:
      around: the scopes that it was compiled in.
      forbids_compiling: whether it was compiled with `jit_compile=False`; Keras' own
        choice is no such word.
      running: the methods that are running, outermost first.
      changes: to be undone when these end.
    """

    around: tuple[scope_stack.Layer, ...] = ()
    forbids_compiling: bool = False
    running: list[str] = dataclasses.field(default_factory=list)
    changes: ExitStack = dataclasses.field(default_factory=ExitStack)
    # Made in a loop of the program's own, whose end is not seen: put back before the
    # model trains again.
    unseen: ExitStack = dataclasses.field(default_factory=ExitStack)


_models: weakref.WeakKeyDictionary[Any, _Model] = weakref.WeakKeyDictionary()


def introduce_callbacks(introduce: Callable[..., Any]) -> None:
    """Have something done when a list of callbacks has given all of them a model.

    It takes the result, the list and the model.
    """
    install_hooks(dict.fromkeys(tracing.CALLBACK_LISTS, acting_after(introduce)))


def running_method(model: Any) -> str:
    """Return the method of a model that is running, the innermost; "" if none is."""
    known = None if model is None else _models.get(model)
    return known.running[-1] if known and known.running else ""


def install() -> None:
    """Take the hooks of each Keras that is imported."""
    install_hooks(dict.fromkeys(tracing.COMPILE_MODEL, acting_after(_remember)))
    install_hooks(dict.fromkeys(tracing.RUN_MODEL, _run))


def undo_after_call(model: Any, undo: Callable[[], None]) -> None:
    """Have a change of a model undone when the running call of its method ends.

    Where none is running, it is undone before the model trains again.
    """
    calls = _models.setdefault(model, _Model())
    (calls.changes if calls.running else calls.unseen).callback(undo)


def undo_changes(model: Any) -> None:
    """Undo now what was to be undone later, the latest first."""
    calls = _models.get(model)
    if calls is not None:
        calls.changes.close()
        calls.unseen.close()


def _remember(result: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """Remember the scopes that a model was compiled in, and a word on XLA."""
    known, layers = _models.setdefault(model, _Model()), scope_stack.layers()
    known.around = tuple(layer for layer in layers if layer.graph is None)
    known.forbids_compiling = kwargs.get("jit_compile") is False


@wrapping
def _run(run: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a method of a model in its scopes; undo what the outermost has changed."""
    known = _models.setdefault(model, _Model())
    if not known.running and run.__name__ in _TRAINING:
        known.unseen.close()
    known.running.append(run.__name__)
    try:
        with (
            scope_stack.within(scope_stack.layers() or known.around),
            scope_stack.forbidding_compiling(known.forbids_compiling),
        ):
            return run(model, *args, **kwargs)
    finally:
        known.running.pop()
        if not known.running:
            known.changes.close()
