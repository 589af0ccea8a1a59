"""What kind of model a path holds; refuses what is none."""

from __future__ import annotations

import enum
import pathlib

from tf_amp.errors import ScriptMissingError, UnreadableModelError

SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
# Written for models whose graph is larger than a protobuf may be.
_SPLIT_FILE = "saved_model.cpb"
_WANTED = (
    "a SavedModel folder (with saved_model.pb), a .keras file, or a frozen graph (.pb)"
)


class Kind(enum.Enum):
    """What can be converted."""

    SAVED_MODEL = "SavedModel"
    KERAS = "Keras file"
    FROZEN = "frozen graph"


def kind_of(source: pathlib.Path) -> Kind:
    """Tell what `source` is by its name and contents.

    Raises:
      ScriptMissingError: there is no such path.
      UnreadableModelError: it is none of the kinds; the message names them.
    """
    if not source.exists():
        raise ScriptMissingError(f"{source} does not exist; needed is {_WANTED}.")
    if source.is_dir():
        return _kind_of_folder(source)
    if source.suffix == ".keras":
        return Kind.KERAS
    if source.suffix == ".pb" and source.name not in SAVED_MODEL_FILES:
        return Kind.FROZEN
    if source.name in SAVED_MODEL_FILES:
        raise UnreadableModelError(
            f"{source} is part of a SavedModel; name its folder, {source.parent}."
        )
    raise UnreadableModelError(f"{source} is no model: needed is {_WANTED}.")


def _kind_of_folder(source: pathlib.Path) -> Kind:
    if any((source / name).is_file() for name in SAVED_MODEL_FILES):
        return Kind.SAVED_MODEL
    if (source / _SPLIT_FILE).is_file():
        raise UnreadableModelError(
            f"{source} holds its graph in several parts ({_SPLIT_FILE}), as models "
            "over 2 GiB do; these cannot be converted."
        )
    raise UnreadableModelError(
        f"{source} is not a SavedModel: it has no saved_model.pb; needed is {_WANTED}."
    )
