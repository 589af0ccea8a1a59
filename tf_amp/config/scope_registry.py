"""Configurations by the ids that operations are stamped with, and the one in force.

A `RegisteredScope` is one `enable` or one `mixed_precision_scope`.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any, NamedTuple

from grappler_pass.fork_safety import cached_attribute
from tf_amp.config.amp_config import AmpConfig

# Graphs whose gradients are scaled differently may be rewritten as one.
_UNRELATED: dict[str, Any] = {"loss_scale": None}


@dataclasses.dataclass(frozen=True)
class RegisteredScope:
    """A configuration, and the id that stands for it in stamps."""

    id: str
    config: AmpConfig

    @cached_attribute
    def rewriting(self) -> AmpConfig:
        """The configuration without settings that do not bear on rewriting."""
        return dataclasses.replace(self.config, **_UNRELATED)


class InForce(NamedTuple):
    """The scope that holds wherever no other does.

    Attributes:
      scope: None: nothing is rewritten.
      is_programs: whether the program has called for it, not the environment.
    """

    scope: RegisteredScope | None = None
    is_programs: bool = False


# Stamps of another process, as in a SavedModel it wrote, must not be taken for ours.
_nonce = secrets.token_hex(3)
# By id, also of processes that have this one compute. Graphs traced under them may
# arrive at any time.
_scopes: dict[str, RegisteredScope] = {}
_choice = InForce()


def known_scope(config: AmpConfig) -> RegisteredScope | None:
    """Return the scope of a configuration that was in force before; else None."""
    scopes = tuple(_scopes.values())
    return next((scope for scope in scopes if scope.config == config), None)


def scope_from_config(config: AmpConfig) -> RegisteredScope:
    """Return the scope of a configuration; the same one for an equal configuration.

    Not to be called by several threads at once.
    """
    scope = known_scope(config)
    if scope is not None:
        return scope
    scope = RegisteredScope(f"{_nonce}.{len(_scopes) + 1}", config)
    _scopes[scope.id] = scope
    return scope


def put_in_force(config: AmpConfig | None, *, is_programs: bool) -> None:
    """Let a configuration hold wherever no scope says otherwise; None: none does.

    Not to be called by several threads at once.
    """
    global _choice
    scope = None if config is None else scope_from_config(config)
    _choice = InForce(scope, is_programs)


def choice() -> InForce:
    """Return the scope in force, and who has called for it."""
    return _choice


def scope_in_force() -> RegisteredScope | None:
    """Return the scope where no other is entered; None: nothing is rewritten."""
    return _choice.scope


def base_config() -> AmpConfig:
    """Return the configuration that scopes begin with: `enable`'s or the variables'."""
    return _choice.scope.config if _choice.scope else AmpConfig.from_env()


def adopt_scope(settings_id: str, config: AmpConfig) -> None:
    """Let an id of another process stand for a configuration."""
    _scopes[settings_id] = RegisteredScope(settings_id, config)


def canonical_id(settings_id: str) -> str | None:
    """Return the first id whose settings rewrite in the same way; None for no way."""
    scope = scope_of(settings_id)
    if scope is None or not scope.config.rewrites:
        return None
    scopes = tuple(_scopes.values())
    return next(s.id for s in scopes if s.rewriting == scope.rewriting)


def asks_for_clusters() -> bool:
    """Return whether any settings let XLA compile parts of functions."""
    return any(s.config.compile != "off" for s in tuple(_scopes.values()))


def excludes_names(settings_id: str) -> bool:
    """Tell whether operations stay float32 by their names under some settings."""
    scope = scope_of(settings_id)
    return scope is not None and bool(scope.config.exclude)


def scope_of(settings_id: str) -> RegisteredScope | None:
    """Return the scope a stamp refers to; None for one of a stranger's process."""
    return _scopes.get(settings_id)
