"""Errors of tf_amp, and how one is shown that nobody catches.

Every message says what was received and how to fix it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import pathlib
import sys
from collections.abc import Callable
from types import TracebackType

from grappler_pass.errors import AmpError as AmpError
from grappler_pass.errors import MissingExtraError as MissingExtraError
from grappler_pass.errors import ShimError as ShimError
from grappler_pass.errors import StageError as StageError
from grappler_pass.errors import guess as guess

# The exit code of what is refused.
REFUSED = 2
# As `difflib` counts: the share of letters that names of two files have in common.
_FEW_LETTERS = 0.75
# `sys.excepthook`, which may be the program's own.
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class ConfigError(AmpError, ValueError):
    """A setting is unknown, or two settings contradict each other."""


class TensorFlowMissingError(AmpError, ImportError):
    """TensorFlow is not installed, or is older than the oldest supported version.

    Attributes:
      state: what was found.
      remedy: the command that fixes it.
    """

    def __init__(self, state: str, remedy: str) -> None:
        """Put both into the message."""
        super().__init__(f"{state}. To fix it: {remedy}")
        self.state = state
        self.remedy = remedy


class ScriptMissingError(AmpError, FileNotFoundError):
    """The script or SavedModel named on the command line does not exist."""


class RewriteError(AmpError, RuntimeError):
    """A graph could not be rewritten; raised only when strict."""


class ScopeError(AmpError, RuntimeError):
    """A scope is entered twice, or left out of order."""


class NotMeasurableError(AmpError, RuntimeError):
    """A graph cannot be run outside of its program, or its times are noise."""


class UnreadableRecordError(AmpError, ValueError):
    """A file, folder or text holds nothing that tf-amp writes, or is damaged."""


class UnfitDataError(AmpError, ValueError):
    """Data to run a model on does not fit its inputs, or cannot be read."""


class UnreadableModelError(AmpError, ValueError):
    """A file to convert is no model, is damaged, or cannot be loaded here."""


class AlreadyMixedError(AmpError, ValueError):
    """A model that is to be converted computes in 16 bits already."""


class ConversionError(AmpError, OSError):
    """A converted model cannot be written; nothing of it is left."""


class CheckpointMismatchError(AmpError, ValueError):
    """A checkpoint holds the state of another loss scale than the program's."""


def guess_path(path: str | os.PathLike[str]) -> str:
    """Return a guess for a path that is not there, by what its folder has."""
    missing = pathlib.Path(path)
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(missing.parent)
    near = difflib.get_close_matches(missing.name, names, n=1, cutoff=_FEW_LETTERS)
    return f"; did you mean {missing.with_name(near[0])}?" if near else ""


def show_in_a_line(
    is_meant: Callable[[BaseException], bool], with_code: Callable[[str], str]
) -> None:
    """Show errors of a kind in one line without a traceback; end as commands do."""

    def show(error: BaseException, before: Hook) -> object:
        # An interpreter that somebody types into goes on.
        goes_on = hasattr(sys, "ps1") or sys.flags.inspect
        end = "" if goes_on else "the program ends here: "
        said = str(error).rstrip(".")
        print(with_code(f"tf-amp: {end}{said}"), file=sys.stderr)
        if goes_on:
            return None
        raise SystemExit(REFUSED)

    _show(is_meant, show)


def show_from(error: BaseException, first: TracebackType | None) -> None:
    """Show an error with its frames from the first one given on; None: with none."""

    def show(error: BaseException, before: Hook) -> object:
        return before(type(error), error.with_traceback(first), first)

    _show(lambda other: other is error, show)


def _show(
    is_meant: Callable[[BaseException], bool],
    show: Callable[[BaseException, Hook], object],
) -> None:
    before: Hook = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, frames: TracebackType | None
    ) -> None:
        if is_meant(error):
            show(error, before)
        else:
            before(kind, error, frames)

    sys.excepthook = hook
