"""Export a .keras file as a SavedModel, which is then converted."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import zipfile
from collections.abc import Iterator

from tf_amp.errors import UnreadableModelError

_UNSAFE = "safe_mode"


@contextlib.contextmanager
def exported(path: pathlib.Path, *, allow_lambda: bool) -> Iterator[pathlib.Path]:
    """Yield the folder of a SavedModel made of a Keras file, for a while.

    Python code stored in the file, as lambda layers have it, is run only if allowed.

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
    with tempfile.TemporaryDirectory(prefix="tf-amp-") as folder:
        given = pathlib.Path(folder) / path.stem
        try:
            model.export(str(given), verbose=False)
        except Exception as error:
            raise UnreadableModelError(
                f"{path} is loaded, but Keras cannot export it: {error}"
            ) from error
        yield given


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
