"""Convert a stored model: `convert` is the whole of it in order.

Read, rewrite in memory, write to a folder beside the target, rename. Nothing is written
before the new model is complete in memory, but for the variables, which are copied.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from tf_amp.config.amp_config import LowDtype, OptLevel
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.convert import files

if TYPE_CHECKING:
    from tf_amp.tools.convert.job import ConversionReport


def convert(
    source: str | pathlib.Path,
    target: str | pathlib.Path,
    *,
    dtype: LowDtype | None = None,
    device_profile: str | None = None,
    opt_level: OptLevel | None = None,
    exclude: Iterable[str] = (),
    keep_io: bool = True,
    weights: Literal["float32", "low"] = "float32",
    calibration: str | pathlib.Path | None = None,
    verify: bool = False,
    overwrite: bool = False,
    allow_lambda: bool = False,
    batch: int | None = None,
    to: Literal["mixed", "float32"] = "mixed",
) -> ConversionReport:
    """Convert a stored model to mixed precision, or one of ours back to float32.

    Signatures keep names and, by default, dtypes; assets, objects, function names and
    tags stay. The result runs in TensorFlow alone.

    Args:
      source: folder of a SavedModel, a .keras file, or a frozen graph (.pb).
      target: where the result goes: a folder, for a frozen graph a file (.pb).
      dtype: "bfloat16" or "float16"; what suits the device by default.
      device_profile: name or path of one to plan for; that of the present device by
        default.
      opt_level: "O0" to "O3", as for `enable`.
      exclude: regular expressions; operations with such names stay float32.
      keep_io: whether signatures keep their dtypes; if not, what is float32 in them is
        in 16 bits for whoever calls them.
      weights: "low" stores matrices among variables and constants in 16 bits.
      calibration: an .npz file of inputs; what leaves the type's range on them stays
        float32.
      verify: whether both models are run on the same inputs and compared.
      overwrite: whether a model at `target` may be replaced.
      allow_lambda: whether Python code within a .keras file may be run.
      batch: size to plan for where the model leaves it open.
      to: "mixed", or "float32" to take a converted model models.

    Raises:
      AlreadyMixedError: the model computes in 16 bits already.
      ConfigError: an option is unknown; or the target exists, lies in the source, or is
        named as another kind of file.
      ConversionError: the result cannot be written; nothing of it is left.
      UnfitDataError: the calibration data does not fit the model's inputs.
      UnreadableModelError: the source is damaged or no model.
      ScriptMissingError: there is no such source.
    """
    begin = time.perf_counter()
    source, target = pathlib.Path(source), pathlib.Path(target)
    kind = files.kind_of(source)
    is_frozen = kind is files.Kind.FROZEN
    files.check_name(target, is_frozen=is_frozen)
    files.check_target(source, target, overwrite=overwrite)
    check_tensorflow()
    from tf_amp.tools.convert import models
    from tf_amp.tools.convert.job import ConversionJob, options_from

    options = options_from(
        dtype=dtype,
        device_profile=device_profile,
        opt_level=opt_level,
        exclude=exclude,
        keep_io=keep_io,
        weights=weights,
        calibration=None if calibration is None else pathlib.Path(calibration),
        verify=verify,
        batch=batch,
        to=to,
    )
    with contextlib.ExitStack() as stack:
        path = source
        if kind is files.Kind.KERAS:
            exported = files.exported(source, allow_lambda=allow_lambda)
            path = stack.enter_context(exported)
        draft = stack.enter_context(files.replacing(target))
        job = ConversionJob(source, path, target, kind.value, options, begin)
        return models.write(job, draft)
