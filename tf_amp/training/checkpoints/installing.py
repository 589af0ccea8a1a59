"""Which functions that save and restore are wrapped, and by what."""

from __future__ import annotations

import functools

from tf_amp._tensorflow_private import checkpoints as private
from tf_amp._tensorflow_private import install as install_hook
from tf_amp._tensorflow_private import installed
from tf_amp.training.checkpoints import keras_files, name_based, object_based


def install() -> None:
    """Wrap what TensorFlow saves and restores with, and each Keras once it is there."""
    for hook, wrap in {**object_based.HOOKS, **name_based.HOOKS}.items():
        install_hook(hook, wrap)
    for module in {hook.module for hook in keras_files.HOOKS}:
        if private.is_imported(module):
            _install_keras(module)
        else:
            _await(module)


@functools.cache
def _await(module: str) -> None:
    """Wrap the functions of a module once it is imported, unless disabled by then."""

    def install_late() -> None:
        if private.RESTORE_OBJECTS in installed():
            _install_keras(module)

    private.when_imported(module, install_late)


def _install_keras(module: str) -> None:
    for hook, wrap in keras_files.HOOKS.items():
        if hook.module == module:
            install_hook(hook, wrap)
