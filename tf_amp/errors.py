"""Errors of tf_amp, and how one is shown that nobody catches.

Every message says what was received and how to fix it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from grappler_pass.errors import AmpError as AmpError
from grappler_pass.errors import MissingExtraError as MissingExtraError
from grappler_pass.errors import ShimError as ShimError
from grappler_pass.errors import StageError as StageError

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


def show_in_a_line(is_meant: Callable[[BaseException], bool]) -> None:
    """Show errors of a kind in one line, without a traceback."""
    _show(is_meant, lambda error, before: print(f"tf-amp: {error}", file=sys.stderr))


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
