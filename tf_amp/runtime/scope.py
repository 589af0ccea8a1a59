"""Scopes: mixed precision for a part of a program, and float32 for a part of that.

    with tf_amp.mixed_precision_scope(dtype="float16", exclude=["^head/"]):
        train_op = optimizer.minimize(loss)

Both are context managers and decorators. They hold for what is traced inside, in this
thread; what a thread started inside does is its own affair.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import wrapt

from tf_amp._tensorflow_private import tracing
from tf_amp.config.amp_config import (
    AmpConfig,
    Compile,
    LowDtype,
    Memory,
    OptLevel,
    checked_settings,
)
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.config.loss_scales.words import LossScaleWord
from tf_amp.config.scope_registry import base_config
from tf_amp.config.setting_values import checked_bool
from tf_amp.errors import ConfigError
from tf_amp.runtime import switch
from tf_amp.tracing import stack as scope_stack

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Scope:
    """A context manager, and a decorator that enters a new one for each call."""

    def __init__(
        self, text: str, configure: Callable[[], AmpConfig | None] | None
    ) -> None:
        """Remember what to enter; nothing is looked at or changed yet.

        `text` is what the user wrote, for errors; `configure` returns the configuration
        on entry, None for mixed precision off. Without it the scope marks operations
        and leaves the settings what they are.
        """
        self._text = text
        self._configure = configure

    def __repr__(self) -> str:
        """Show the call that made it."""
        return self._text

    def __enter__(self) -> Scope:
        """Put the scope in force in this thread.

        Raises:
          ScopeError: it has been entered and not been left.
        """
        settings_id = self._open()
        graph = tracing.traced_graph()
        traced = graph if graph is not None and graph.building_function else None
        try:
            scope_stack.push(scope_stack.Layer(self, settings_id, traced))
        except BaseException:
            switch.close_scope()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Put in force again what was before.

        Raises:
          ScopeError: a scope entered later has not been left.
        """
        scope_stack.pop(self)
        switch.close_scope()

    def __call__(self, function: _Function) -> _Function:
        """Return a function that runs within a new scope like this one each time.

        Raises:
          ConfigError: this is no function, or one that ends after its call.
        """
        wrapped: Any = function
        if not callable(wrapped) or isinstance(wrapped, type):
            raise ConfigError(f"{self} decorates functions; received {function!r}.")
        ending_later = (
            inspect.isgeneratorfunction,
            inspect.iscoroutinefunction,
            inspect.isasyncgenfunction,
        )
        if any(is_kind(wrapped) for is_kind in ending_later):
            raise ConfigError(
                f"{self} cannot decorate {wrapped.__name__}, whose body runs after its "
                "call has returned; use a with statement in the body."
            )
        if hasattr(wrapped, "get_concrete_function"):
            return cast(_Function, _ScopedFunction(wrapped, self._anew))

        # A plain function, which AutoGraph converts together with what it calls.
        @functools.wraps(wrapped)
        def call_in_scope(*args: Any, **kwargs: Any) -> Any:
            with self._anew():
                return wrapped(*args, **kwargs)

        return cast(_Function, call_in_scope)

    def opened(self) -> scope_stack.Layer:
        """Return the scope's layer, for what is to run within it time and again.

        `runtime.close_scope` is to be called once when that is over.

        Raises:
          ConfigError: its settings cannot be used.
        """
        return scope_stack.Layer(self, self._open())

    def _anew(self) -> Scope:
        return Scope(self._text, self._configure)

    def _open(self) -> str | None:
        settings_id = switch.open_scope(self._configure and self._configure())
        return settings_id if self._configure else None


class _ScopedFunction(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """A `tf.function` that is traced and called within a scope."""

    def __init__(self, function: Any, new_scope: Callable[[], Scope]) -> None:
        def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            with new_scope():
                return wrapped(*args, **kwargs)

        super().__init__(function, call)
        self._self_new_scope = new_scope

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the method of an object, which is traced within the scope as well."""
        function: Any = self.__wrapped__
        return _ScopedFunction(function.__get__(instance, owner), self._self_new_scope)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """Trace within the scope."""
        with self._self_new_scope():
            function: Any = self.__wrapped__
            return function.get_concrete_function(*args, **kwargs)


def mixed_precision_scope(
    dtype: LowDtype | None = None,
    *,
    loss_scale: LossScale | float | LossScaleWord | str | None = None,
    opt_level: OptLevel | None = None,
    exclude: Iterable[Any] = (),
    memory: Memory | None = None,
    compile: Compile | None = None,
    enabled: bool = True,
) -> Scope:
    """Switch rewriting and loss scaling on for what is traced inside.

    Works with and without the environment variable. What is not given comes from
    `enable` or the environment, not from a scope around this one: the inner wins. A
    function traced inside keeps its setting when it is called outside, and one traced
    outside keeps its own when it is called inside. Gradients take the forward
    operations of a graph along that were made before the scope was entered.

    Args:
      dtype: "bfloat16" or "float16"; None lets each device choose.
      loss_scale: a loss scale such as `DynamicLossScale()`, a number or words for one,
        see loss scaling; honored whatever the dtype. None leaves the choice to it.
      opt_level: "O0" to "O3"; "O1" unless `enable` or the environment says otherwise.
      exclude: regular expressions and Keras layers, added to those of `enable`;
        operations with such a name, or that such a layer makes when it is called, and
        their gradients, stay float32.
      memory: "save" lets steps take a little longer to hold less, "speed" does not.
      compile: whether the program's own steps may choose that XLA compiles parts of a
        function ("clusters"), or parts or all of it ("on"), or not ("off"); as `enable`
        or the environment says by default.
      enabled: False leaves alone what is made inside, and its gradients.

    Raises:
      ConfigError: an argument is none of those allowed.
    """
    for given in (dtype, loss_scale):
        if callable(given) and not hasattr(given, "adjust"):
            raise ConfigError(
                f"mixed_precision_scope: received the function {given!r}; as a "
                "decorator it is written with parentheses: @mixed_precision_scope()."
            )
    checked_bool(enabled, "enabled")
    settings = checked_settings(
        dtype=dtype,
        opt_level=opt_level,
        loss_scale=loss_scale,
        exclude=exclude or None,
        memory=memory,
        compile=compile,
    )
    words = [f"{name}={value!r}" for name, value in settings.items()]
    words += [] if enabled else ["enabled=False"]
    text = f"mixed_precision_scope({', '.join(words)})"

    def configuration() -> AmpConfig | None:
        base, exclude = base_config(), settings.get("exclude", ())
        patterns = tuple(dict.fromkeys((*base.exclude, *exclude)))
        changes = {**settings, "enabled": True, "exclude": patterns}
        return dataclasses.replace(base, **changes) if enabled else None

    return Scope(text, configuration)


autocast = mixed_precision_scope


def float32_scope() -> Scope:
    """Keep what is made inside in float32, and its gradient operations.

    Loss scaling is what it is outside. A `mixed_precision_scope` entered inside wins.
    """
    return Scope("float32_scope()", None)
