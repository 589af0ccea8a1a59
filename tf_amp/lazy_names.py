"""Public names of a package that are loaded when they are first used."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package, see PEP 562.

    `homes` has the module that each name is defined in, `.name` for one of the package,
    whose `__all__` is what `dir` lists, loaded or not. `modules` of the package are
    there without being imported by name. Where TensorFlow cannot be imported, names
    that need it raise TensorFlowMissingError.
    """

    def load(name: str) -> Any:
        if name in modules:
            return _module(f".{name}", package)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(_module(homes[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return list(sys.modules[package].__all__)

    return load, names


def _module(name: str, package: str) -> types.ModuleType:
    try:
        return importlib.import_module(name, package)
    except (ImportError, AttributeError):
        # A TensorFlow that is missing, broken or too old says so first.
        importlib.import_module("tf_amp.tensorflow_version").check_tensorflow()
        raise
