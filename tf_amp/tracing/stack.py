"""Which scopes surround the running code, and what is let pass there.

There is a stack of scopes per thread and context.

A layer that was entered while a function is traced holds for what is made in that
function, even in the middle of it; one entered outside of functions holds for those
whose trace begins under it. What the settings of a layer mean is not decided here.

What this package does for itself, and what is decided already, is let pass.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, TypeVar

from tf_amp._tensorflow_private.tracing import outwards
from tf_amp.errors import ScopeError

_T = TypeVar("_T")


@contextlib.contextmanager
def holding(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Let a variable of the running thread, or task, have a value inside."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """A scope that was entered and not yet left.

    Attributes:
      owner: the context manager; its text names it in errors.
      settings: id of the settings in force; None: those of the layer below.
      graph: the function's graph that was being traced on entry, if any.
    """

    owner: object
    settings: str | None
    graph: Any | None = None

    def holds_in(self, graph: Any) -> bool:
        """Return whether operations made in a graph belong to this layer."""
        around = outwards(graph)
        functions = itertools.takewhile(lambda each: each.building_function, around)
        return self.graph is None or any(each is self.graph for each in functions)


_stack: ContextVar[tuple[Layer, ...]] = ContextVar("tf_amp_scopes", default=())


def push(layer: Layer) -> None:
    """Put a layer on top.

    Raises:
      ScopeError: its owner has been entered already.
    """
    layers = _stack.get()
    if any(below.owner is layer.owner for below in layers):
        raise ScopeError(
            f"{layer.owner} is entered a second time before it was left; make a new "
            "scope for each with statement."
        )
    _stack.set((*layers, layer))


def pop(owner: object) -> None:
    """Take the topmost layer off.

    Raises:
      ScopeError: it is another owner's.
    """
    layers = _stack.get()
    if layers and layers[-1].owner is owner:
        _stack.set(layers[:-1])
        return
    if not any(layer.owner is owner for layer in layers):
        raise ScopeError(f"{owner} is left, but was not entered in this thread.")
    raise ScopeError(
        f"{owner} is left before {layers[-1].owner}, which was entered after it; "
        "leave scopes in the reverse order, as with statements do."
    )


def settings_layer(graph: Any) -> Layer | None:
    """Return the innermost layer whose settings hold for new operations of a graph."""
    for layer in reversed(_stack.get()):
        if layer.settings is not None and layer.holds_in(graph):
            return layer
    return None


def keeping_in_float32() -> str:
    """Return which scope without settings of its own is the innermost one; "" if none.

    What is made in it stays float32.
    """
    layers = _stack.get()
    return str(layers[-1].owner) if layers and layers[-1].settings is None else ""


def keeping_float32(why: str) -> AbstractContextManager[None]:
    """Keep what is made inside in float32, as `float32_scope` does for users.

    Plans say why.
    """
    return within((*_stack.get(), Layer(why, None)))


def inherit(result: None, thread: Any, *args: Any, **kwargs: Any) -> None:
    """Let a thread that was made run within the present scopes."""
    context, run = contextvars.copy_context(), thread.run
    thread.run = lambda: context.run(run)


def within(layers: tuple[Layer, ...]) -> AbstractContextManager[None]:
    """Run under the scopes that another piece of code was under."""
    return holding(_stack, layers)


def layers() -> tuple[Layer, ...]:
    """Return the scopes around the running code, outermost first."""
    return _stack.get()


_leaves_graphs_alone = ContextVar("tf_amp_leaves_graphs_alone", default=False)
_forbids_compiling = ContextVar("tf_amp_forbids_compiling", default=False)
_takes_all = ContextVar("tf_amp_takes_all", default=False)


def leaves_graphs_alone() -> bool:
    """Return whether this thread is within `leaving_graphs_alone`."""
    return _leaves_graphs_alone.get()


def leaving_graphs_alone() -> AbstractContextManager[None]:
    """Pass graphs through that this thread optimizes."""
    return holding(_leaves_graphs_alone, True)


def forbids_compiling() -> bool:
    """Return whether a model runs of which the program says `jit_compile=False`."""
    return _forbids_compiling.get()


def forbidding_compiling(forbids: bool) -> AbstractContextManager[None]:
    """Let XLA compile nothing of what is called inside, if that is forbidden."""
    return holding(_forbids_compiling, forbids or forbids_compiling())


def takes_all() -> bool:
    """Return whether the running code is not to be asked for overflows."""
    return _takes_all.get()


def taking_all() -> AbstractContextManager[None]:
    """Let every step inside be taken, and whatever is assigned be assigned."""
    return holding(_takes_all, True)
