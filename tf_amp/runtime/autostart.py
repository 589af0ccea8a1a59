"""Start tf-amp from within a program that only sets an environment variable.

`tf_amp_autostart.pth` calls `start` for each FuncGraph, Session and optimizer that is
made, and each server that starts, while the switch is on, and `note_variable` and
`note_model` for what may never come to a graph; what the switch says is read by
`runtime`. While it is off, it calls `note_names` of variables that look like settings,
and are none.
Without the `.pth` file (in a folder that Python does not treat as site-packages, or
under `python -S`) nothing calls it: see `is_installed`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from grappler_pass.fork_safety import per_process, renewed_lock
from tf_amp.errors import AmpError, show_in_a_line
from tf_amp.message_codes import Code

_lock = renewed_lock()
_started = False
_is_done = False
_has_failed = False


def start(made: object) -> None:
    """Enable tf-amp as the environment says, once per process.

    A thread that comes while another one enables waits until that is done. What is made
    at the time, a FuncGraph, a Session or a server, counts as made later.

    Raises:
      ConfigError: a variable has a value that is not known. Every later call raises
        too, so that no program goes on in a precision that nobody asked for. A
        program that does not catch it ends with that one line.
    """
    global _started, _is_done, _has_failed
    if _is_done:
        _join(made)
        return
    with _lock:
        if _started:
            _join(made)
            return
        # Set before enabling, which may itself make graphs in this thread.
        _started = True
        try:
            from tf_amp.runtime import switch

            switch.enable_from_environment(made)
            _is_done = True
        except BaseException as error:
            _started = False
            if isinstance(error, AmpError):
                # No line of the program is to blame for it.
                error.is_of_environment = True
                if not _has_failed:
                    _has_failed = True
                    show_in_a_line(
                        lambda e: getattr(e, "is_of_environment", False),
                        Code.SETTING_REFUSED.ends,
                    )
            raise


def _join(made: object) -> None:
    """Take in what was in the making while another thread enabled."""
    if _is_done:
        from tf_amp.runtime import switch

        switch.take_in(made)


def note_variable(variable: Any) -> None:
    """Notice what a process makes that is about to compute, perhaps eagerly."""
    from tf_amp.rewriting import unseen

    unseen.note_variable(variable)


def note_model(model: object) -> None:
    """Notice models that TensorFlow does not compute."""
    from tf_amp.rewriting import unseen

    unseen.note_model()


def note_names(names: Iterable[str]) -> None:
    """Say once of variables that look like settings, and are none, that it is so."""
    from tf_amp.config import amp_config

    amp_config.say_unknown(names)


def is_installed() -> bool:
    """Tell whether this interpreter has run `tf_amp_autostart.pth`."""
    return any(getattr(finder, "tf_amp_autostart", False) for finder in sys.meta_path)


def _forget_parent() -> None:
    """Start anew in a forked child, where graphs pass unchanged until then."""
    global _started, _is_done
    _started = _is_done = False


per_process(_forget_parent)
