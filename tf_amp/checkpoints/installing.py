"""Which functions that save and restore are wrapped, and by what."""

from __future__ import annotations

from tf_amp._tensorflow_private import install as install_hook
from tf_amp.checkpoints import name_based, object_based


def install() -> None:
    """Wrap what TensorFlow saves and restores with."""
    for hook, wrap in {**object_based.HOOKS, **name_based.HOOKS}.items():
        install_hook(hook, wrap)
