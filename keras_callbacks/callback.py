"""What every callback here is made of, for Keras 3 and tf_keras alike.

Both Keras call the methods of whatever is in the list of callbacks, so these classes
are derived from neither, and import neither. What shows both that a method for each
batch is not there, so that it costs nothing, is `_is_default`. They tell callbacks
nothing of one another, so the list that is about to call them does; in a loop of the
user's own without such a list there are none.
"""

from __future__ import annotations

from typing import Any

from absl import logging

from keras_callbacks.summaries import Summaries
from tf_amp._tensorflow_private import Method, wrapping
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code
from tf_amp.runtime import model_scopes

Logs = dict[str, Any] | None


class Callback:
    """A callback that does nothing yet.

    Attributes:
      model: that is trained, from `set_model` on.
      params: what Keras says of the run: "verbose", "epochs" and "steps".
      others: the callbacks of the same list, itself among them.
    """

    # Keras 3: methods for batches may run beside the next batch.
    async_safe = True
    _chief_worker_only = None

    model: Any = None
    params: dict[str, Any] | None = None
    others: tuple[Any, ...] = ()

    @property
    def _supports_tf_logs(self) -> bool:
        """tf_keras: logs may hold tensors, so that nothing waits for the device."""
        return True

    def set_params(self, params: dict[str, Any]) -> None:
        """Take what Keras says of the run."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Take the model."""
        self.model, self.others = model, ()

    def sibling(self, kind: str) -> Any | None:
        """Return the first callback beside this whose class, or a base, is so called.

        It may be one of Keras 3, tf_keras or this package.
        """
        for callback in self.others:
            if any(base.__name__ == kind for base in type(callback).__mro__):
                return callback
        return None

    def _do_nothing(self, *args: Any, **kwargs: Any) -> None:
        """Stand for an event that this callback has nothing to do at."""

    _do_nothing.__dict__["_is_default"] = True
    on_train_begin = on_train_end = _do_nothing
    on_epoch_begin = on_epoch_end = _do_nothing
    on_test_begin = on_test_end = _do_nothing
    on_predict_begin = on_predict_end = _do_nothing
    on_batch_begin = on_batch_end = _do_nothing
    on_train_batch_begin = on_train_batch_end = _do_nothing
    on_test_batch_begin = on_test_batch_end = _do_nothing
    on_predict_batch_begin = on_predict_batch_end = _do_nothing

    def _implements_train_batch_hooks(self) -> bool:
        return self._has_batch_hooks("train")

    def _implements_test_batch_hooks(self) -> bool:
        return self._has_batch_hooks("test")

    def _implements_predict_batch_hooks(self) -> bool:
        return self._has_batch_hooks("predict")

    def _has_batch_hooks(self, role: str) -> bool:
        hooks = (getattr(self, f"on_{role}_batch_{end}") for end in ("begin", "end"))
        return any(not hasattr(hook, "_is_default") for hook in hooks)


@wrapping
def never_raising(method: Method, monitor: Monitor, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a monitor, and switch that off where it would raise."""
    if monitor.is_off:
        return None
    try:
        return method(monitor, *args, **kwargs)
    # Training is worth more than what is reported of it, whatever the reason.
    except Exception as error:
        monitor.switch_off(f"{type(error).__name__}: {error}")
        return None


class Monitor(Callback):
    """A callback that only looks on, and never breaks `fit`.

    It goes before all others in the list, so that these see what it writes into the
    logs. Of two monitors of a class the first one works.

    Attributes:
      is_off: whether it has given up in this `fit`.
    """

    is_off = False
    _summaries = Summaries()

    def on_train_begin(self, logs: Logs = None) -> None:
        """Take its place among the callbacks, and begin."""
        self.is_off = False
        self._begin()

    @never_raising
    def _begin(self) -> None:
        same = [each for each in self.others if type(each) is type(self)]
        if same and same[0] is not self:
            self.switch_off("another one comes before it in the list of callbacks")
            return
        self._summaries = Summaries(self.sibling("TensorBoard"), self.model)
        self.begin()

    @never_raising
    def on_train_end(self, logs: Logs = None) -> None:
        """Close what was opened, and end."""
        self._summaries.close()
        self.end()

    def begin(self) -> None:
        """Get ready for a run of `fit`; overridden by what has something to do."""

    def end(self) -> None:
        """Finish a run of `fit`; overridden likewise."""

    def switch_off(self, reason: str) -> None:
        """Do nothing more in this `fit`, and say why."""
        self.is_off = True
        text = Code.CALLBACK_IS_OFF.ends("%s is disabled: %s.")
        logging.warning(text, type(self).__name__, reason.rstrip("."))


def check_one_of(owner: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ConfigError unless a value is one of those allowed, of the same type."""
    if not any(type(value) is type(each) and value == each for each in allowed):
        words = ", ".join(map(repr, allowed))
        raise ConfigError(f"{owner}: {name}={value!r}; allowed are {words}.")


def _introduce(result: None, listed: Any, model: Any) -> None:
    """Let callbacks of ours know the others of a list; monitors go first in it."""
    ours = [each for each in listed.callbacks if isinstance(each, Callback)]
    monitors = {id(each): each for each in ours if isinstance(each, Monitor)}
    for one in monitors.values():
        if sum(each is one for each in ours) > 1:
            logging.warning("%s is given twice; it counts once.", type(one).__name__)
    rest = [each for each in listed.callbacks if id(each) not in monitors]
    listed.callbacks = [*monitors.values(), *rest]
    for each in ours:
        each.others = tuple(listed.callbacks)


model_scopes.introduce_callbacks(_introduce)
