"""Write a model so that there is the whole of it, or nothing.

All is written to a folder beside the target and renamed at the end. Where there is a
model already, the two change places in one step, if the file system can.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pathlib
import shutil
import socket
from collections.abc import Iterator

from tf_amp.errors import AmpError, ConfigError, ConversionError

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
        _put_in_place(draft, target)
    except AmpError:
        raise
    except OSError as error:
        raise ConversionError(f"{target} cannot be written: {_why(error)}") from error
    finally:
        _remove(draft)


def _why(error: OSError) -> str:
    text = error.strerror or str(error)
    # What copies a folder reports all its failures in one text.
    is_full = error.errno in _DISK_FULL or any(
        os.strerror(n) in text for n in _DISK_FULL
    )
    reason = "there is no room left on the disk" if is_full else text
    return f"{reason}; nothing of it was kept."


def _put_in_place(draft: pathlib.Path, target: pathlib.Path) -> None:
    """Rename the draft; what was there before takes the draft's name."""
    if not os.path.lexists(target):
        draft.rename(target)
    elif target.is_file() and draft.is_file():
        draft.replace(target)
    elif not _exchange(draft, target):
        old = draft.with_name(f"{draft.name}.old")
        target.rename(old)
        draft.rename(target)
        _remove(old)


def _exchange(first: pathlib.Path, second: pathlib.Path) -> bool:
    """Let two paths change places at once; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = [os.fsencode(path) for path in (first, second)]
    failed = rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _EXCHANGE)
    return not failed


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
