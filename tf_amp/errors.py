"""What tf_amp raises; every message says what was received and what mends it."""

from __future__ import annotations


class AmpError(Exception):
    """Anything this package raises on purpose.

    Attributes:
      is_scripts_own: raised within a script that a command runs, and shown with its
        traceback, as any other error of that script.
      is_of_environment: raised by what the environment says or lacks, whichever script
        comes upon it.
    """

    is_scripts_own = False
    is_of_environment = False


class ConfigError(AmpError, ValueError):
    """A setting is unknown, or two settings contradict each other."""


class TensorFlowMissing(AmpError, ImportError):
    """TensorFlow is not installed, or is older than the oldest supported version.

    Attributes:
      state: what was found.
      remedy: the command that mends it.
    """

    def __init__(self, state: str, remedy: str) -> None:
        """Put both into the message."""
        super().__init__(f"{state}. What mends it: {remedy}")
        self.state = state
        self.remedy = remedy


class ScriptMissing(AmpError, FileNotFoundError):
    """The script or SavedModel named on the command line does not exist."""


class RewriteFailed(AmpError, RuntimeError):
    """A graph could not be rewritten; raised only when strict."""


class ScopeError(AmpError, RuntimeError):
    """A scope is entered twice, or left out of order."""


class CostsUnreadable(AmpError, OSError):
    """The database of measured costs, or a file of them, cannot be read or written."""


class NotMeasurable(AmpError, RuntimeError):
    """A graph cannot be run apart from its program, or another process measures."""


class DataUnfit(AmpError, ValueError):
    """Data to run a model on does not fit its inputs, or cannot be read."""


class ModelUnreadable(AmpError, ValueError):
    """What is to be converted is no model, is damaged, or cannot be loaded here."""


class AlreadyMixed(AmpError, ValueError):
    """A model that is to be converted computes in 16 bits already."""


class ConversionFailed(AmpError, OSError):
    """A converted model cannot be written; nothing of it is left."""


class CheckpointMismatch(AmpError, ValueError):
    """A checkpoint holds the state of another loss scale than the program's."""


class MachineUnclear(AmpError, ValueError):
    """What a machine tells of itself is not in the form it is known to have."""
