"""What stored models compute on data: ranges to convert by, and how both compare."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.view import Item
from tf_amp.config.ranges import Ranges
from tf_amp.errors import AmpError, ConfigError, NotMeasurableError, UnfitDataError
from tf_amp.run import batches as data
from tf_amp.run import progress
from tf_amp.run.graph_cases import rounded
from tf_amp.run.graph_copy import Array
from tf_amp.tools.convert import files
from tf_amp.tools.convert.job import ConversionJob
from tf_amp.tools.convert.rewriting import unmixed
from tf_amp.tools.ranges import joined, ranges_of
from tf_amp.tools.verify.cases import named_leaves
from tf_amp.tools.verify.verification import Verification
from tf_amp.tools.verify.verifying import Controls

_BATCH = 8
_DEFAULT = "serving_default"


class _Part(NamedTuple):
    """What can be run of a stored model: one of its signatures, or a frozen graph.

    Attributes:
      function: its ConcreteFunction, or the GraphDef.
      call: takes its inputs by name, with float32 where the model takes 16 bits.
      variables: that it uses.
    """

    function: Any
    call: Callable[..., Any]
    variables: Sequence[Any] = ()


def _parts_of(path: pathlib.Path, item: Item) -> dict[str, _Part]:
    """Load a model for running it as it is; `item` is of a frozen graph."""
    with unmixed():
        if path.is_file():
            graph_def = files.read(path).meta_graphs[0].graph_def
            return {"graph": _Part(graph_def, _function_of(graph_def, item))}
        signatures = data.loaded_signatures(path)

    def call(signature: Any, **inputs: tf.Tensor) -> Any:
        specs = signature.structured_input_signature[1]
        cast = {
            name: tf.cast(value, specs[name].dtype)
            if value.dtype.is_floating
            else value
            for name, value in inputs.items()
        }
        return signature(**cast)

    return {
        name: _Part(function, functools.partial(call, function), function.variables)
        for name, function in signatures.items()
    }


def compared_models(
    job: ConversionJob, draft: pathlib.Path, item: Item, low_dtype: str
) -> tuple[dict[str, Verification], tuple[str, ...]]:
    """Compare each part of both models, and say which could not be fed.

    NotMeasurableError: the model cannot be run on made-up inputs.
    """
    originals, converted = (_parts_of(path, item) for path in (job.path, draft))
    path, size = job.options.calibration, job.options.batch or _BATCH
    verifications: dict[str, Verification] = {}
    remarks: list[str] = []
    for name, part in progress.each(tuple(originals.items()), "comparing signatures"):
        specs = data.specs_of(part.function)
        words = "made-up inputs" if path is None else str(path)
        try:
            # The user's first ones, if there are any.
            inputs = (
                {spec.name: data.made_up(spec, size) for spec in specs}
                if path is None
                else data.batches_from_file(path, specs)[0]
            )
        except UnfitDataError as error:
            remarks.append(f"{name} is not verified: {error}")
            continue
        verifications[name] = compared(
            part.call,
            converted[name].call,
            inputs,
            low_dtype=low_dtype,
            variables=part.variables,
            name=f"{name}, on {words}",
        )
    return verifications, tuple(remarks)


def compared(
    float32: Callable[..., Any],
    mixed: Callable[..., Any],
    inputs: data.Batch,
    *,
    low_dtype: str,
    name: str,
    variables: Iterable[Any] = (),
) -> Verification:
    """Run both functions on the same inputs and return whether the numbers hold.

    Args:
      float32: returns any structure of tensors; run twice, for its noise, and with
        inputs and variables rounded to 16 bits.
      mixed: returns the same structure.
      inputs: by name.
      low_dtype: of `mixed`: "bfloat16" or "float16".
      name: of what is compared, human-readable.
      variables: that `float32` uses.
    """
    moved = {
        key: rounded(np.asarray(value), low_dtype) for key, value in inputs.items()
    }
    try:
        expected, in_16_bits = _results(float32, inputs), _results(mixed, inputs)
        noise = _results(float32, inputs)
        stored = [(variable, variable.numpy()) for variable in variables]
        try:
            for variable, value in stored:
                variable.assign(rounded(value, low_dtype))
            controls = Controls(expected, noise, _results(float32, moved), low_dtype)
        finally:
            for variable, value in stored:
                variable.assign(value)
    except tf.errors.OpError as error:
        raise NotMeasurableError(
            f"verify: the model fails on {name.partition(', on ')[2]}: "
            f"{error.message}. Give inputs that suit it with --calibration."
        ) from error
    return controls.verification_of(in_16_bits, {}, graph=name)


def _results(function: Callable[..., Any], inputs: data.Batch) -> dict[str, Array]:
    # TensorFlow 2.16 calls no signature of a v1 model with arrays.
    tensors = {key: tf.constant(value) for key, value in inputs.items()}
    return {n: np.asarray(value) for n, value in named_leaves(function(**tensors))}


def ranges_of_model(
    job: ConversionJob, item: Item
) -> tuple[Ranges | None, tuple[str, ...]]:
    """Return what the tensors of a model keep to, in all signatures that fit.

    None without data. With it comes what is to be said of signatures that did not run;
    if none did, that is the error. `item` is of a frozen graph.
    """
    path = job.options.calibration
    if path is None:
        return None, ()
    parts = _parts_of(job.path, item)
    if not parts:
        raise ConfigError(
            f"--calibration: {job.source} has no signature that could be fed; export "
            "it with one."
        )
    ranges: list[Ranges] = []
    errors: dict[str, AmpError] = {}
    for name, part in parts.items():
        try:
            batches = data.batches_from_file(path, data.specs_of(part.function))
            ranges.append(ranges_of(part.function, batches, fetches=item.fetch))
        except (UnfitDataError, NotMeasurableError) as error:
            errors[name] = error
    if not ranges:
        # Of the signature whose inputs the file's arrays name, else the default one.
        names: set[str] = set()
        with contextlib.suppress(*data.UNREADABLE):
            with np.load(path, allow_pickle=False) as archive:
                names = set(archive.files)
        named = (
            name
            for name, part in parts.items()
            if {spec.name for spec in data.specs_of(part.function)} == names
        )
        default = _DEFAULT if _DEFAULT in parts else next(iter(parts))
        raise errors[next(named, default)]
    return joined(ranges), tuple(
        f"{name} did not run on the data, and what it alone computes may leave the "
        f"type's range: {why}"
        for name, why in errors.items()
    )


def _function_of(graph_def: GraphDef, item: Item) -> Callable[..., Any]:
    """Return what runs a bare graph, given its inputs by name."""
    specs = data.specs_of(graph_def)

    def run(*inputs: Any) -> list[Any]:
        fed = {s.name: value for s, value in zip(specs, inputs, strict=True)}
        results: list[Any] = tf.graph_util.import_graph_def(
            graph_def, fed, [f"{name}:0" for name in item.fetch], name=""
        )
        return results

    signature = [tf.TensorSpec(spec.shape, spec.dtype) for spec in specs]
    traced = tf.function(run, input_signature=signature).get_concrete_function()
    return lambda **inputs: traced(*(inputs[spec.name] for spec in specs))
