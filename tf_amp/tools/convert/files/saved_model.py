"""Read and write the parts of a SavedModel's folder.

Only what changes is made anew: the graphs, and the variables where they are stored in
another type. Assets and whatever else lies in the folder are copied.
"""

from __future__ import annotations

import pathlib
import shutil
from typing import TYPE_CHECKING

from tf_amp.errors import UnreadableModelError
from tf_amp.tools.convert.files.sources import SAVED_MODEL_FILES

if TYPE_CHECKING:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

GRAPH_FILE, TEXT_FILE = SAVED_MODEL_FILES
VARIABLES = pathlib.PurePath("variables", "variables")
# A folder for what belongs to a model but is not part of it; loaders ignore it.
EXTRAS = pathlib.PurePath("assets.extra", "tf_amp")
# It is a hash of the graphs; one that no longer fits says less than none.
_FINGERPRINT = "fingerprint.pb"


def read(folder: pathlib.Path) -> SavedModel:
    """Return the graphs of a SavedModel.

    Raises:
      UnreadableModelError: the file is damaged, or holds no graph.
    """
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    saved_model = SavedModel()
    path = folder / GRAPH_FILE
    try:
        if path.is_file():
            saved_model.ParseFromString(path.read_bytes())
        else:
            path = folder / TEXT_FILE
            text_format.Parse(path.read_text(), saved_model)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise UnreadableModelError(
            f"{path} is damaged or no SavedModel's graph: {error}."
        ) from error
    if not saved_model.meta_graphs:
        raise UnreadableModelError(f"{path} holds no graph; it may have been cut off.")
    return saved_model


def copy_rest(source: pathlib.Path, folder: pathlib.Path, *, variables: bool) -> None:
    """Copy all of a SavedModel but its graphs to a folder that is made for it.

    Args:
      source: the SavedModel.
      folder: does not exist yet.
      variables: whether their files are copied too.
    """
    left_out = {*SAVED_MODEL_FILES, _FINGERPRINT}
    if not variables:
        left_out.add(VARIABLES.parts[0])
    extras = EXTRAS.parts[-1]

    def ignored(path: str, names: list[str]) -> set[str]:
        if pathlib.Path(path) == source:
            return left_out.intersection(names)
        is_extra = pathlib.Path(path).name == EXTRAS.parts[0]
        return {extras}.intersection(names) if is_extra else set()

    shutil.copytree(source, folder, ignore=ignored)


def write(saved_model: SavedModel, folder: pathlib.Path) -> None:
    """Write the graphs into a SavedModel's folder."""
    (folder / GRAPH_FILE).write_bytes(saved_model.SerializeToString())


def size_of(path: pathlib.Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
