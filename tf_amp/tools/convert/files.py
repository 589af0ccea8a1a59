"""Read the files of stored models, and write a model whole or not at all.

Of a SavedModel only what changes is written again: the graphs, and the variables where
they are stored in another type. Whatever else lies in its folder is copied. All is
written beside the target and renamed at the end; where there is a model already, the
two change places in one step, if the file system can.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import os
import pathlib
import shutil
import socket
import tempfile
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_amp.errors import (
    AmpError,
    ConfigError,
    ConversionError,
    ScriptMissingError,
    UnreadableModelError,
    guess_path,
)

if TYPE_CHECKING:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

SAVED_MODEL_FILES = _GRAPH_FILE, _TEXT_FILE = "saved_model.pb", "saved_model.pbtxt"
VARIABLES = pathlib.PurePath("variables", "variables")
# A folder for what belongs to a model but is not part of it; loaders ignore it.
EXTRAS = pathlib.PurePath("assets.extra", "tf_amp")
# It is a hash of the graphs; one that no longer fits says less than none.
_FINGERPRINT = "fingerprint.pb"
# Written for models whose graph is larger than a protobuf may be.
_SPLIT_FILE = "saved_model.cpb"
# In what Keras says of code that it does not run.
_UNSAFE = "safe_mode"
_WANTED = (
    "a SavedModel folder (with saved_model.pb), a .keras file, or a frozen graph (.pb)"
)


class Kind(enum.Enum):
    """What can be converted."""

    SAVED_MODEL = "SavedModel"
    KERAS = "Keras file"
    FROZEN = "frozen graph"


def kind_of(source: pathlib.Path) -> Kind:
    """Return what `source` is by its name and contents; an error names the kinds."""
    if not source.exists():
        near = guess_path(source) or f"; needed is {_WANTED}."
        raise ScriptMissingError(f"{source} does not exist{near}")
    if any((source / name).is_file() for name in SAVED_MODEL_FILES):
        return Kind.SAVED_MODEL
    if (source / _SPLIT_FILE).is_file():
        raise UnreadableModelError(
            f"{source} holds its graph in several parts ({_SPLIT_FILE}), as models "
            "over 2 GiB do; these cannot be converted."
        )
    if source.is_dir():
        raise UnreadableModelError(
            f"{source} is not a SavedModel: it has no saved_model.pb; needed is "
            f"{_WANTED}."
        )
    if source.suffix == ".keras":
        return Kind.KERAS
    if source.name in SAVED_MODEL_FILES:
        raise UnreadableModelError(
            f"{source} is part of a SavedModel; name its folder, {source.parent}."
        )
    if source.suffix == ".pb":
        return Kind.FROZEN
    raise UnreadableModelError(f"{source} is no model: needed is {_WANTED}.")


@contextlib.contextmanager
def unreadable(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise such errors as UnreadableModelError, with what it says of a file."""
    try:
        yield
    except errors as error:
        raise UnreadableModelError(f"{what}: {str(error).rstrip('.')}.") from error


def extras_of(path: pathlib.Path) -> pathlib.Path:
    """Return where the report of a converted model lies."""
    return path / EXTRAS if path.is_dir() else beside(path)


def beside(path: pathlib.Path) -> pathlib.Path:
    """Return where the report of a converted frozen graph lies, which is a file."""
    return path.with_name(f"{path.name}.tf_amp")


def read(path: pathlib.Path) -> SavedModel:
    """Read the graphs of a SavedModel's folder, or of a frozen graph's file.

    A frozen graph, whose weights are constants, is a model of one graph without
    signatures.
    """
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    is_frozen = path.is_file()
    if not is_frozen:
        is_text = not (path / _GRAPH_FILE).is_file()
        path = path / (_TEXT_FILE if is_text else _GRAPH_FILE)
    kind = "frozen graph (a serialized GraphDef)" if is_frozen else "SavedModel's graph"
    errors = (DecodeError, text_format.ParseError, UnicodeDecodeError)
    with unreadable(f"{path} is damaged or no {kind}", *errors):
        model = model_from_bytes(path.read_bytes(), path.suffix, is_frozen=is_frozen)
    if not model.meta_graphs:
        raise UnreadableModelError(f"{path} holds no graph; it may have been cut off.")
    nodes = model.meta_graphs[0].graph_def.node
    if is_frozen and not (nodes and all(node.op for node in nodes)):
        raise UnreadableModelError(f"{path} holds no graph (a serialized GraphDef).")
    return model


def model_from_bytes(
    data: bytes, suffix: str = ".pb", *, is_frozen: bool
) -> SavedModel:
    """Parse what `bytes_from_model` returns; of a SavedModel ".pbtxt" is text."""
    from google.protobuf import text_format
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    model = SavedModel()
    if is_frozen:
        model.meta_graphs.add().graph_def.ParseFromString(data)
    elif suffix == ".pbtxt":
        text_format.Parse(data.decode(), model)
    else:
        model.ParseFromString(data)
    return model


def bytes_from_model(model: SavedModel, *, is_frozen: bool) -> bytes:
    """Serialize a model, or the one graph of a frozen one."""
    proto = model.meta_graphs[0].graph_def if is_frozen else model
    return bytes(proto.SerializeToString())


def write(
    model: SavedModel, source: pathlib.Path, target: pathlib.Path, *, variables: bool
) -> None:
    """Write the graphs of a model, and what else `source` holds, to a new path.

    The files of the variables are copied if `variables` says so.
    """
    is_frozen = source.is_file()
    data = bytes_from_model(model, is_frozen=is_frozen)
    if is_frozen:
        target.write_bytes(data)
        return
    left_out = {*SAVED_MODEL_FILES, _FINGERPRINT}
    if not variables:
        left_out.add(VARIABLES.parts[0])

    def ignored(path: str, names: list[str]) -> set[str]:
        if pathlib.Path(path) == source:
            return left_out.intersection(names)
        is_extra = pathlib.Path(path).name == EXTRAS.parts[0]
        return {EXTRAS.parts[-1]}.intersection(names) if is_extra else set()

    shutil.copytree(source, target, ignore=ignored)
    (target / _GRAPH_FILE).write_bytes(data)


def size_of(path: pathlib.Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


@contextlib.contextmanager
def exported(path: pathlib.Path, *, allow_lambda: bool) -> Iterator[pathlib.Path]:
    """Yield the folder of a SavedModel made of a Keras file, for a while.

    Python code stored in the file, as lambda layers have it, is run only if allowed.
    """
    import keras

    if not zipfile.is_zipfile(path):
        raise UnreadableModelError(
            f"{path} is damaged or cut off: a .keras file is a zip archive."
        )
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=not allow_lambda)
    except Exception as error:
        if _UNSAFE in str(error) or "lambda" in str(error).lower():
            raise UnreadableModelError(
                f"{path} holds a lambda layer, which is Python code; it was not run. "
                "Pass --allow-lambda (allow_lambda=True) if you trust the file."
            ) from error
        raise UnreadableModelError(
            f"{path} cannot be loaded by Keras: {str(error).rstrip('.')}. A model with "
            "classes of your own is converted from its SavedModel: "
            "model.export(folder)."
        ) from error
    with tempfile.TemporaryDirectory(prefix="tf-amp-") as folder:
        folder_of_model = pathlib.Path(folder) / path.stem
        with unreadable(f"{path} is loaded, but Keras cannot export it", Exception):
            model.export(str(folder_of_model), verbose=False)
        yield folder_of_model


_AT_FDCWD = -100
_EXCHANGE = 2
# Of files that hold a model, which a folder is not.
_MODEL_FILES = frozenset(
    {".h5", ".hdf5", ".keras", ".onnx", ".pb", ".pbtxt", ".tflite"}
)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_target(
    source: pathlib.Path, target: pathlib.Path, *, overwrite: bool
) -> None:
    """Refuse a target that exists, or lies within the source or around it."""
    inner, outer = target.resolve(), source.resolve()
    if inner == outer:
        raise ConfigError(f"IN and OUT are the same: {source}; name another OUT.")
    if inner.is_relative_to(outer):
        raise ConfigError(f"OUT {target} lies inside IN {source}; name another OUT.")
    if outer.is_relative_to(inner):
        raise ConfigError(f"IN {source} lies inside OUT {target}; name another OUT.")
    if os.path.lexists(target) and not overwrite:
        raise ConfigError(
            f"OUT {target} exists; name another one, or pass --overwrite "
            "(overwrite=True)."
        )
    if not inner.parent.is_dir():
        raise ConfigError(f"OUT {target}: there is no folder {target.parent}.")


def check_name(target: pathlib.Path, *, is_frozen: bool) -> None:
    """Refuse a target whose name says that it is another kind of model.

    A frozen graph is written as a file, all else as the folder of a SavedModel.
    """
    suffix = target.suffix.lower()
    if suffix not in _MODEL_FILES or (is_frozen and suffix == ".pb"):
        return
    if is_frozen:
        kind, other = "a frozen graph", target.with_suffix(".pb")
    else:
        kind, other = "a SavedModel, which is a folder", target.with_suffix("")
    cannot = "holds layers and weights, but no rewritten graph"
    why = f"; a .keras file {cannot}" if suffix == ".keras" else ""
    loads = "" if is_frozen else ", which keras.layers.TFSMLayer loads"
    raise ConfigError(
        f"OUT {target}: what is written is {kind}{why}. Name another OUT, such as "
        f"{other}{loads}."
    )


@contextlib.contextmanager
def replacing(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield a path to write a file or folder at, which becomes `target` on leaving.

    Raises:
      ConversionError: it cannot be written; nothing is left beside `target`, which
        is as it was.
    """
    target = pathlib.Path(os.path.abspath(target))
    prefix = f".{target.name}.tf-amp.{socket.gethostname()}."
    # What processes of this machine left behind that were killed.
    for path in target.parent.glob(f"{prefix}*"):
        number = path.name.removeprefix(prefix).partition(".")[0]
        if number.isdigit() and not os.path.exists(f"/proc/{number}"):
            _remove(path)
    draft = target.with_name(f"{prefix}{os.getpid()}")
    try:
        yield draft
        # The disk is to hold what was written before its name says that it is whole.
        for file in [draft] if draft.is_file() else draft.rglob("*"):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        if not os.path.lexists(target):
            draft.rename(target)
        elif target.is_file() and draft.is_file():
            draft.replace(target)
        else:
            # Both change places at once, where the system can.
            rename = getattr(ctypes.CDLL(None), "renameat2", lambda *_: -1)
            first, second = map(os.fsencode, (draft, target))
            if rename(_AT_FDCWD, first, _AT_FDCWD, second, _EXCHANGE):
                old = draft.with_name(f"{draft.name}.old")
                target.rename(old)
                draft.rename(target)
                _remove(old)
    except AmpError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        # What copies a folder reports all its failures in one text.
        full = [os.strerror(number) for number in _DISK_FULL]
        if error.errno in _DISK_FULL or any(text in why for text in full):
            why = "there is no room left on the disk"
        raise ConversionError(
            f"{target} cannot be written: {why}; nothing of it was kept."
        ) from error
    finally:
        _remove(draft)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
