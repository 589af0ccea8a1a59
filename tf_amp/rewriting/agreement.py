"""Whether the workers that train in step run under the same settings.

A worker without loss scaling takes no part in the others' votes; then all wait for
ever, or fail with an error of TensorFlow's that does not say why. So each says by what
settings it runs, before it first votes, and looks whether the chief runs by the same;
the chief looks whether everyone does.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time

from absl import logging

from tf_amp.config.amp_config import LOSS_SCALE, AmpConfig
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.config.loss_scales.words import words_from_loss_scale
from tf_amp.config.workers import Peers, peers
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code

_SETTINGS = "settings"
PATIENCE_SECONDS = 30.0
# Of the process, as its workers are: set once they have been asked.
_checked = threading.Event()
# What may differ from machine to machine.
_LOCAL = frozenset(
    f"TF_AMP_{name}" for name in ("CACHE", "LOG", "STRICT", "TUNE", "VERBOSE")
)


def check_once(config: AmpConfig, *, wait: bool = False) -> None:
    """Compare settings with the other workers, once in a process, in a thread."""
    others = None if _checked.is_set() else peers()
    if others is None:
        return
    _checked.set()
    arguments = (told_settings(config), others)
    thread = threading.Thread(target=compare, args=arguments, daemon=True)
    thread.start()
    if wait:
        thread.join()


def told_settings(config: AmpConfig) -> dict[str, str]:
    """Return what of the settings has to be the same everywhere."""
    variables = dataclasses.replace(config, loss_scale=None).to_env()
    if config.loss_scale is not None:
        variables[LOSS_SCALE] = _words_or_class(config.loss_scale)
    return {name: variables[name] for name in sorted(variables.keys() - _LOCAL)}


def _words_or_class(loss_scale: LossScale) -> str:
    """Return the words of a loss scale; of the program's own, whose it is."""
    try:
        return words_from_loss_scale(loss_scale)
    except ConfigError:
        return f"the program's own {type(loss_scale).__name__}"


def compare(
    own: dict[str, str], others: Peers, seconds: float = PATIENCE_SECONDS
) -> None:
    """Tell the other workers of the settings here, and warn where theirs differ."""
    others.tell(_SETTINGS, json.dumps(own))
    end = time.monotonic() + seconds
    for worker in others.others if others.is_chief else (others.chief,):
        theirs = others.ask(worker, _SETTINGS, max(0.0, end - time.monotonic()))
        if theirs is None:
            Code.WORKER_IS_SILENT.warn(
                "%s has not said within %.0f s that it runs in mixed precision. If "
                "it does not, all workers may wait for ever: set the same "
                "variables for each of them.",
                worker,
                seconds,
            )
        else:
            _warn_of_differences(own, json.loads(theirs), worker, others.own)


def _warn_of_differences(
    own: dict[str, str], theirs: dict[str, str], worker: str, here: str
) -> None:
    names = sorted(n for n in own.keys() | theirs.keys() if own.get(n) != theirs.get(n))
    if names:
        differences = ", ".join(
            f"{n} is {theirs.get(n, 'not set')} on {worker} and "
            f"{own.get(n, 'not set')} on {here}"
            for n in names
        )
        text = Code.SETTINGS_DISAGREE.ends("Settings of the workers disagree: %s.")
        logging.warning(text, differences)
