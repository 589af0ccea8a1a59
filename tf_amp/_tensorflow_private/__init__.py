"""The only place, with its siblings, that names private hooks of TensorFlow.

Each is looked up when it is needed; where one is gone, one warning says what no longer
works, and the rest goes on.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import wrapt

from grappler_pass.fork_safety import renewed_lock
from tf_amp.message_codes import Code

Method = Callable[..., Any]
Wrap = Callable[[Method], Method]
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class Hook(NamedTuple):
    """A method or function of TensorFlow to be wrapped.

    Attributes:
      module: where it is.
      owner: its class; empty for a function of the module.
      method: its name.
      without: what the user loses where it is gone, for the warning.
      of_callbacks: whether callbacks need it, also when mixed precision is off.
      register: module and function that must know the one in place.
    """

    module: str
    owner: str
    method: str
    without: str
    of_callbacks: bool = False
    register: tuple[str, str] | None = None


def hooks(without: str, *paths: str, **more: Any) -> tuple[Hook, ...]:
    """Return the hooks at some paths: "module:Class.method" or "module:function".

    Args:
      without: what the user loses where any of them is gone.
      *paths: where they are.
      **more: further fields of each `Hook`.
    """
    places = (path.partition(":")[::2] for path in paths)
    return tuple(
        Hook(module, *name.rpartition(".")[::2], without, **more)
        for module, name in places
    )


(CREATE_OP,) = hooks(
    "functions are rewritten with the settings of their first call, not of their trace",
    "tensorflow.python.framework.ops:Graph._create_op_helper",
)
(CREATE_SESSION,) = hooks(
    "graphs built before mixed precision was enabled stay float32",
    "tensorflow.python.client.session:BaseSession.__init__",
)
(CALL_FUNCTION,) = hooks(
    "a rewrite that fails in a function is reported as a warning only",
    "tensorflow.python.eager.polymorphic_function.concrete_function:ConcreteFunction._call_flat",
)
(MAKE_MODEL,) = hooks(
    "models of another backend of Keras are not mentioned",
    "keras.src.trainers.trainer:Trainer.__init__",
)

# Owner, original and replacement of each.
_patches: dict[Hook, tuple[Any, Method, Method]] = {}
# What wraps those of modules that are not imported yet.
_awaited: dict[Hook, Wrap] = {}
_installing = renewed_lock()


def install(wraps: Mapping[Hook, Wrap]) -> bool:
    """Replace methods by what wraps make of them, unless that is done already.

    Those of TensorFlow are replaced now, which several threads must not do at once.
    Those of Keras are once their modules have been imported, unless all are removed
    before; any thread may call for these, and import the modules.

    Return whether all are in place or awaited; if not, a warning has said what is lost.
    """
    is_complete = True
    for hook, wrap in wraps.items():
        if hook.module.startswith("tensorflow."):
            is_complete &= _install(hook, wrap)
            continue
        module = sys.modules.get(hook.module)
        with _installing:
            if module and not getattr(module.__spec__, "_initializing", False):
                is_complete &= _install(hook, wrap)
                continue
            _awaited[hook] = wrap
        _await(hook.module)
    return is_complete


def _install(hook: Hook, wrap: Wrap) -> bool:
    if hook in _patches:
        return True
    owner = _owner_of(hook)
    original: Method | None = owner and getattr(owner, hook.method, None)
    if original is None:
        warn_once(f"{hook.owner or hook.module}.{hook.method}", hook.without)
        return False
    replacement = wrap(original)
    if not _put(hook, owner, replacement):
        return False
    _patches[hook] = owner, original, replacement
    return True


def _put(hook: Hook, owner: Any, function: Method) -> bool:
    """Put a function in place; TensorFlow's core gets it first, where it asks."""
    if hook.register is not None:
        module, name = hook.register
        try:
            getattr(importlib.import_module(module), name)(function)
        except (ImportError, AttributeError):
            warn_once(name, hook.without)
            return False
    setattr(owner, hook.method, function)
    return True


@functools.cache
def _await(module: str) -> None:
    wrapt.register_post_import_hook(_install_awaited, module)


def _install_awaited(module: Any) -> None:
    with _installing:
        for hook in [each for each in _awaited if each.module == module.__name__]:
            _install(hook, _awaited.pop(hook))


def remove(kept: Collection[Hook] = (), *, of_callbacks: bool = False) -> None:
    """Put every method back, but for those kept and those wrapped by others since.

    Those of callbacks are kept, unless they are to go as well.
    """

    def goes(hook: Hook) -> bool:
        return hook not in kept and (of_callbacks or not hook.of_callbacks)

    for hook in filter(goes, list(_awaited)):
        del _awaited[hook]
    for hook, (owner, original, replacement) in list(_patches.items()):
        if goes(hook) and getattr(owner, hook.method) is replacement:
            _put(hook, owner, original)
            del _patches[hook]


def wrapping(act: Callable[..., Any]) -> Wrap:
    """Return what wraps a method so that a function is called in its place.

    Args:
      act: takes the method, and the arguments that are meant for it.
    """

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def act_instead(*args: Any, **kwargs: Any) -> Any:
            return act(method, *args, **kwargs)

        return act_instead

    return wrap


def wrapping_unconverted(act: Callable[..., Any]) -> Wrap:
    """Return the same, for methods that AutoGraph would convert."""
    wrap = wrapping(act)
    return lambda method: unconverted(wrap(method))


def acting_before(act: Callable[..., Any]) -> Wrap:
    """Return what wraps a method so that something is done before it.

    Args:
      act: takes the method's arguments.
    """

    def act_and_call(method: Method, *args: Any, **kwargs: Any) -> Any:
        act(*args, **kwargs)
        return method(*args, **kwargs)

    return wrapping(act_and_call)


def acting_after(act: Callable[..., Any]) -> Wrap:
    """Return what wraps a method so that something is done after it.

    Args:
      act: takes the method's result, and its arguments.
    """

    def call_and_act(method: Method, *args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        act(result, *args, **kwargs)
        return result

    return wrapping(call_and_act)


def unconverted(function: Method) -> Method:
    """Return a function that AutoGraph is to leave as it is."""
    import tensorflow as tf

    left_alone: Method = tf.autograph.experimental.do_not_convert(function)
    return left_alone


def installed() -> tuple[Hook, ...]:
    """Return the hooks in place."""
    return tuple(_patches)


def unless_gone(
    name: str, without: str, otherwise: Any
) -> Callable[[Callable[_Given, _Result]], Callable[_Given, _Result]]:
    """Return a decorator of functions that use a private name.

    Args:
      name: of TensorFlow.
      without: what the user loses where it is gone, for the warning.
      otherwise: returned in that case.
    """

    def decorate(look_up: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        @functools.wraps(look_up)
        def look_up_or_warn(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
            try:
                return look_up(*args, **kwargs)
            except (ImportError, AttributeError):
                warn_once(name, without)
                return otherwise  # type: ignore[no-any-return]

        return look_up_or_warn

    return decorate


@unless_gone("IsMklEnabled", "costs assume that oneDNN is in use", None)
def is_onednn_enabled() -> bool | None:
    """Return whether TensorFlow uses oneDNN in this process; None where unknown."""
    module = importlib.import_module("tensorflow.python.util._pywrap_util_port")
    return bool(module.IsMklEnabled())


def is_session(made: Any) -> bool:
    """Tell a Session from a function's graph."""
    return isinstance(made, _owner_of(CREATE_SESSION) or ())


@unless_gone(
    "is_op_determinism_enabled",
    "under enable_op_determinism, set TF_AMP_TUNE=off for equal plans",
    False,
)
def is_determinism_enabled() -> bool:
    """Return whether the program has asked for `enable_op_determinism`."""
    module = importlib.import_module("tensorflow.python.framework.config")
    return bool(module.is_op_determinism_enabled())


def session_config() -> Any:
    """Return a ConfigProto with the devices and threads that the program has chosen."""
    from tensorflow.core.protobuf.config_pb2 import ConfigProto

    config = ConfigProto()
    try:
        config.CopyFrom(eager_context().config)
    except (ImportError, AttributeError):
        warn_once("context().config", "measurements use TensorFlow's defaults")
    return config


def eager_context() -> Any:
    """Return what TensorFlow runs eager operations in.

    Raises:
      ImportError, AttributeError: it is not where it was; the caller warns.
    """
    return importlib.import_module("tensorflow.python.eager.context").context()


def stand_in_for(module: Any, **parts: Any) -> Any:
    """Return a stand-in for a module with other parts."""
    stand_in = type(module)(module.__name__)
    stand_in.__dict__.update(vars(module), **parts)
    return stand_in


def warn_once(name: str, without: str) -> None:
    """Say that a private name of TensorFlow is gone, and what is lost."""
    import tensorflow as tf

    text = f"TensorFlow %s has no {name} any more: %s."
    Code.NAME_IS_GONE.warn_once(text, tf.__version__, without)


def _owner_of(hook: Hook) -> Any:
    try:
        module = importlib.import_module(hook.module)
        return getattr(module, hook.owner, None) if hook.owner else module
    except ImportError:
        return None
