"""Configurations by the ids that operations are stamped with, and the one in force.

A `Scope` is one `enable` or one `mixed_precision_scope`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from grappler_pass.cached_attributes import cached_attribute
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.presets import preset_of

# Graphs whose gradients are scaled differently may be rewritten as one.
_UNRELATED: dict[str, Any] = {"loss_scale": None}


@dataclasses.dataclass(frozen=True)
class Scope:
    """A configuration, and the id that stands for it in stamps."""

    id: str
    config: AmpConfig

    @cached_attribute
    def rewriting(self) -> AmpConfig:
        """What of the configuration bears on rewriting."""
        return dataclasses.replace(self.config, **_UNRELATED)


_scopes: dict[str, Scope] = {}
# Of processes that have this one compute, by their ids.
_adopted: dict[str, Scope] = {}
# What holds wherever no other scope does.
_in_force: Scope | None = None
# What was put in force last, and may have been switched off since.
_latest: AmpConfig | None = None


def known_scope(config: AmpConfig) -> Scope | None:
    """Return the scope of a configuration that was in force before; else None."""
    scopes = tuple(_scopes.values())
    return next((scope for scope in scopes if scope.config == config), None)


def scope_from_config(config: AmpConfig, nonce: str) -> Scope:
    """Return the scope of a configuration; the same one for an equal configuration.

    Not to be called by several threads at once.
    """
    known = known_scope(config)
    if known is not None:
        return known
    scope = Scope(f"{nonce}.{len(_scopes) + 1}", config)
    _scopes[scope.id] = scope
    return scope


def put_in_force(config: AmpConfig, nonce: str) -> None:
    """Let a configuration hold wherever no scope says otherwise.

    Not to be called by several threads at once.
    """
    global _in_force, _latest
    _latest = config
    _in_force = scope_from_config(config, nonce)


def put_out_of_force() -> None:
    """Let nothing hold but what scopes say."""
    global _in_force
    _in_force = None


def scope_in_force() -> Scope | None:
    """Return what holds wherever no other scope does; None: nothing is rewritten."""
    return _in_force


def latest_config() -> AmpConfig:
    """Return the settings of the process as a whole, scopes left aside."""
    return _latest or AmpConfig.from_env()


def adopt_scope(settings_id: str, config: AmpConfig) -> None:
    """Let an id of another process stand for a configuration."""
    _adopted[settings_id] = Scope(settings_id, config)


def canonical_id(settings_id: str) -> str | None:
    """Return the first id whose settings rewrite in the same way; None for no way."""
    scope = scope_of(settings_id)
    if scope is None or not preset_of(scope.config.opt_level).rewrites:
        return None
    known = (*_scopes.values(), *_adopted.values())
    return next(s.id for s in known if s.rewriting == scope.rewriting)


def excludes_names(settings_id: str) -> bool:
    """Return whether operations stay float32 by their names under some settings."""
    scope = scope_of(settings_id)
    return scope is not None and bool(scope.config.exclude)


def scope_of(settings_id: str) -> Scope | None:
    """Return the scope a stamp refers to; None for one of a stranger's process."""
    return _scopes.get(settings_id) or _adopted.get(settings_id)
