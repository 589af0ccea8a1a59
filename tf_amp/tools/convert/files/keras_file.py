"""Export a .keras file as a SavedModel, which is then converted."""

from __future__ import annotations

import pathlib
import zipfile

from tf_amp.errors import UnreadableModelError

_UNSAFE = "safe_mode"


def export(path: pathlib.Path, folder: pathlib.Path, *, allow_lambda: bool) -> None:
    """Write the SavedModel of a Keras file.

    Args:
      path: of the .keras file.
      folder: of the SavedModel; does not exist yet.
      allow_lambda: whether Python code stored in the file, as lambda layers have it,
        may be run.

    Raises:
      UnreadableModelError: Keras cannot load it; the message says why.
    """
    import keras

    if not zipfile.is_zipfile(path):
        raise UnreadableModelError(
            f"{path} is damaged or cut off: a .keras file is a zip archive."
        )
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=not allow_lambda)
    except Exception as error:
        raise UnreadableModelError(_reason(path, error)) from error
    try:
        model.export(str(folder), verbose=False)
    except Exception as error:
        raise UnreadableModelError(
            f"{path} is loaded, but Keras cannot export it: {error}"
        ) from error


def _reason(path: pathlib.Path, error: Exception) -> str:
    text = str(error)
    if _UNSAFE in text or "lambda" in text.lower():
        return (
            f"{path} holds a lambda layer, which is Python code; it was not run. Pass "
            "--allow-lambda (allow_lambda=True) if you trust the file."
        )
    why = text.rstrip(".")
    return (
        f"{path} cannot be loaded by Keras: {why}. A model with classes of "
        "your own is converted from its SavedModel: model.export(folder)."
    )
