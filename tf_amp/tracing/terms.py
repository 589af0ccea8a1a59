"""Settings in the stamps of operations that a server is to compute.

The id of settings means something in one process only. Where that process has others
compute, its stamps hold the settings as well, under the key of the job:

    <key of the job>.<what differs from the defaults>

What concerns a machine and not the numbers, such as folders, each server decides.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Callable, Iterable

from tf_amp.config import jobs, scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code

# A server is busy with what it is sent: it decides by the prices that it has.
_TUNE = "off"
# What a server takes from its own environment.
_LOCAL = ("cache_dir", "log_dir", "strict", "loss_scale")


def terms_of(settings_id: str) -> str:
    """Return the terms to stamp beside an id; nothing where no server computes."""
    scope = scope_registry.scope_of(settings_id)
    key = jobs.directed_key() if scope is not None else ""
    return f"{key}.{_text_of(scope.config)}" if scope is not None and key else ""


def adopt(found: Iterable[tuple[str, str]], check: Callable[[AmpConfig], None]) -> None:
    """Make the settings known that a process of the same job has stamped.

    Args:
      found: ids with their terms, as in stamps.
      check: raises ConfigError for settings that cannot be used here.
    """
    for settings_id, terms in found:
        if scope_registry.scope_of(settings_id) is None:
            _adopt(settings_id, terms, check)


def _adopt(settings_id: str, terms: str, check: Callable[[AmpConfig], None]) -> None:
    key, _, text = terms.partition(".")
    if not jobs.is_served(key):
        Code.SERVED_IN_FLOAT32.warn_once(
            "A graph that this server computes stays float32: it was traced by a "
            "process that is no coordinator of its job."
        )
        return
    try:
        config = _config_of(text)
        check(config)
    except (ConfigError, ValueError, binascii.Error) as error:
        Code.SERVED_IN_FLOAT32.warn_once(
            "Graphs that another process has this server compute stay float32: %s",
            error,
        )
        return
    scope_registry.adopt_scope(settings_id, config)


def _text_of(config: AmpConfig) -> str:
    default = AmpConfig(enabled=True)
    local = {name: getattr(default, name) for name in _LOCAL}
    variables = dataclasses.replace(config, **local).to_env()
    usual = default.to_env()
    given = {k: v for k, v in variables.items() if usual.get(k) != v}
    return base64.urlsafe_b64encode(json.dumps(given).encode()).decode()


def _config_of(text: str) -> AmpConfig:
    given = json.loads(base64.urlsafe_b64decode(text))
    if not isinstance(given, dict):
        raise ConfigError(f"received {given!r} where settings should be.")
    own = scope_registry.base_config()
    local = {name: getattr(own, name) for name in _LOCAL}
    config = AmpConfig.from_env({str(k): str(v) for k, v in given.items()})
    return dataclasses.replace(config, enabled=True, tune=_TUNE, **local)
