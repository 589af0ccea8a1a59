"""Which functions that save and restore are wrapped, and by what."""

from __future__ import annotations

from tf_amp._tensorflow_private import install as install_hook
from tf_amp._tensorflow_private import install_when_imported
from tf_amp.training.checkpoints import keras_files, name_based, object_based


def install() -> None:
    """Wrap what TensorFlow saves and restores with, and each Keras once it is there."""
    for hook, wrap in {**object_based.HOOKS, **name_based.HOOKS}.items():
        install_hook(hook, wrap)
    for hook, wrap in keras_files.HOOKS.items():
        install_when_imported(hook, wrap)
