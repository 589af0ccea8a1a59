"""What tf_amp raises; every message says what was received and how to fix it."""

from __future__ import annotations

from grappler_pass.errors import AmpError as AmpError
from grappler_pass.errors import MissingExtraError as MissingExtraError
from grappler_pass.errors import ShimError as ShimError
from grappler_pass.errors import StageError as StageError


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
    """What is to be converted is no model, is damaged, or cannot be loaded here."""


class AlreadyMixedError(AmpError, ValueError):
    """A model that is to be converted computes in 16 bits already."""


class ConversionError(AmpError, OSError):
    """A converted model cannot be written; nothing of it is left."""


class CheckpointMismatchError(AmpError, ValueError):
    """A checkpoint holds the state of another loss scale than the program's."""
