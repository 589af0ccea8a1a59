"""Digests of what is run, which differ once a measured program has been edited.

Of a script its text, of a module the files that its import runs by its name, of a
SavedModel the files that TensorFlow loads. What a program imports in turn is not looked
at, nor the data it reads. Nothing is imported here.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import pathlib
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder

from tf_amp.errors import ConfigError

_CHUNK_BYTES = 2**20
_LOADED = ("saved_model.pb*", "variables/*", "assets/**/*")


def digest_of_file(path: pathlib.Path) -> str:
    """Return the digest of a file's content; ConfigError if it cannot be read."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                found.update(chunk)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    return found.hexdigest()


def digest_of_module(name: str) -> str:
    """Return the digest of a module's file and of its parents' `__init__`.

    "" where there are none: the module does not exist, or is built in.
    """
    return _digest_of_lines(map(digest_of_file, _files_of_module(name)))


def digest_of_saved_model(folder: pathlib.Path) -> str:
    """Return the digest of a SavedModel's graphs, variables and assets."""
    paths = sorted({path for pattern in _LOADED for path in folder.glob(pattern)})
    return _digest_of_lines(
        f"{digest_of_file(path)} {path.relative_to(folder).as_posix()}"
        for path in paths
        if path.is_file()
    )


def _digest_of_lines(lines: Iterator[str]) -> str:
    text = "\n".join(lines)
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _files_of_module(name: str) -> Iterator[pathlib.Path]:
    """Yield the files from the outermost package to the module.

    `importlib.util.find_spec` would import the parents; finders of paths look no
    further than at the last part of a name.
    """
    first, *rest = name.split(".")
    # As the worker would find it, for which the present folder comes first.
    spec = PathFinder.find_spec(first, [str(pathlib.Path.cwd()), *sys.path])
    if spec is None:
        # Packages in development may have finders of their own.
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(first)
    while spec is not None:
        if spec.origin is not None and pathlib.Path(spec.origin).is_file():
            yield pathlib.Path(spec.origin)
        if not rest or spec.submodule_search_locations is None:
            return
        spec = PathFinder.find_spec(rest.pop(0), [*spec.submodule_search_locations])
