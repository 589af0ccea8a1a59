"""What kinds of models are stored, and the parts of their files.

Of a SavedModel only what changes is written anew: the graphs, and the variables where
they are stored in another type. Whatever else lies in its folder is copied.
"""

from __future__ import annotations

import contextlib
import enum
import pathlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_amp.errors import ScriptMissingError, UnreadableModelError

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
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
        raise ScriptMissingError(f"{source} does not exist; needed is {_WANTED}.")
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


def frozen_graph(path: pathlib.Path) -> GraphDef:
    """Read a frozen graph: one GraphDef whose weights are constants."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework.graph_pb2 import GraphDef

    what = f"{path} is damaged or no frozen graph (a serialized GraphDef)"
    with unreadable(what, DecodeError):
        graph_def: GraphDef = GraphDef.FromString(path.read_bytes())
    if not graph_def.node or not all(node.op for node in graph_def.node):
        raise UnreadableModelError(f"{path} holds no graph (a serialized GraphDef).")
    return graph_def


def frozen_extras(path: pathlib.Path) -> pathlib.Path:
    """Return where the report of a converted frozen graph lies: beside it."""
    return path.with_name(f"{path.name}.tf_amp")


def saved_model(folder: pathlib.Path) -> SavedModel:
    """Read the graphs of a SavedModel."""
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    model = SavedModel()
    is_text = not (folder / _GRAPH_FILE).is_file()
    path = folder / (_TEXT_FILE if is_text else _GRAPH_FILE)
    errors = (DecodeError, text_format.ParseError, UnicodeDecodeError)
    with unreadable(f"{path} is damaged or no SavedModel's graph", *errors):
        if is_text:
            text_format.Parse(path.read_text(), model)
        else:
            model.ParseFromString(path.read_bytes())
    if not model.meta_graphs:
        raise UnreadableModelError(f"{path} holds no graph; it may have been cut off.")
    return model


def write_saved_model(
    model: SavedModel, source: pathlib.Path, folder: pathlib.Path, *, variables: bool
) -> None:
    """Write the graphs of a SavedModel, and what else `source` holds, to a new folder.

    The files of the variables are copied if `variables` says so.
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
    (folder / _GRAPH_FILE).write_bytes(model.SerializeToString())


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
        given = pathlib.Path(folder) / path.stem
        with unreadable(f"{path} is loaded, but Keras cannot export it", Exception):
            model.export(str(given), verbose=False)
        yield given
