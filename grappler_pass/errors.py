"""What the three packages raise on purpose has one base."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AmpError(Exception):
    """Anything that tf-amp raises on purpose.

    Attributes:
      is_scripts_own: raised within a script that a command runs, and shown with its
        traceback, as any other error of that script.
      is_of_environment: raised by what the environment says or lacks, whichever script
        comes upon it.
    """

    is_scripts_own = False
    is_of_environment = False


class ShimError(AmpError, RuntimeError):
    """The compiled shim is missing, or TensorFlow will not load it."""


class MissingExtraError(AmpError, ImportError):
    """A package is not installed that only some of tf-amp needs."""


class StageError(AmpError, RuntimeError):
    """A stage of the pass failed; `stage` names it and the cause is chained."""

    def __init__(self, stage: str, cause: Exception) -> None:
        """Name the stage and quote the cause."""
        super().__init__(f"stage {stage!r}: {type(cause).__name__}: {cause}")
        self.stage = stage


def guess(word: str, words: Iterable[str], most: int = 1) -> str:
    """Return "; did you mean NAME?" with the nearest words, "" where none is near."""
    near = difflib.get_close_matches(word, [*words], n=most)
    return f"; did you mean {' or '.join(near)}?" if near else ""
