"""Take a converted model back to what it was, in float32."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_amp.errors import AlreadyMixedError, UnreadableModelError
from tf_amp.tools.convert import originals
from tf_amp.tools.convert.report import JSON_FILE

if TYPE_CHECKING:
    from tf_amp.tools.convert.files.variables_file import VariablesFile


def original_of(extras: pathlib.Path, proto: Any) -> Any:
    """Fill a protobuf with a model as it was before its conversion.

    Args:
      extras: the folder of the conversion's report.
      proto: an empty one of the model's kind.

    Raises:
      UnreadableModelError: the model was not converted by this package, or the file
        that keeps its structure is gone or damaged.
    """
    path = extras / originals.FILE
    if not path.is_file():
        raise UnreadableModelError(
            f"there is no {path}: only a model that tf-amp has converted, with all "
            "that was written beside it, goes back to float32."
        )
    return originals.restored(path, proto)


def report_of(extras: pathlib.Path) -> dict[str, Any]:
    """Return what the report of the conversion says.

    Raises:
      UnreadableModelError: it is gone or damaged.
    """
    path = extras / JSON_FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError) as error:
        raise UnreadableModelError(f"{path} cannot be read: {error}.") from error


def refuse_converted(extras: pathlib.Path) -> None:
    """Refuse a model beside which lies the report of a conversion that changed it.

    Raises:
      AlreadyMixedError: the message tells what was done to it.
      UnreadableModelError: the report is damaged.
    """
    if not (extras / JSON_FILE).is_file():
        return
    report = report_of(extras)
    stored = report.get("storage", {})
    counts = {name: len(stored.get(name, ())) for name in ("variables", "constants")}
    counts["inputs and outputs"] = len(report.get("low_io", ()))
    if any(counts.values()):
        listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        raise AlreadyMixedError(
            f"tf-amp has converted the model already: {listed} are in "
            f"{report['low_dtype']}; it was left as it is. It goes back to float32 "
            "with --to float32."
        )


def write_variables(
    file: VariablesFile, target: pathlib.Path, extras: pathlib.Path
) -> None:
    """Write the file of variables with what the conversion stored low in float32.

    Raises:
      UnreadableModelError: the report of the conversion is gone or damaged.
    """
    stored = report_of(extras).get("storage", {}).get("variables", ())
    file.write(target, frozenset(stored), np.dtype(np.float32))
