"""What stored models compute on data: ranges to convert by, and how both compare."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

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
from tf_amp.tools.convert.files import frozen_graph
from tf_amp.tools.convert.job import Job
from tf_amp.tools.convert.rewriting import unmixed
from tf_amp.tools.ranges import joined, ranges_of
from tf_amp.tools.verify.cases import named_leaves
from tf_amp.tools.verify.verification import OUTPUT, Verification, default_tolerance
from tf_amp.tools.verify.verifying import checks_of

_BATCH = 8
_DEFAULT = "serving_default"


def compared_signatures(
    job: Job, draft: pathlib.Path, low_dtype: str
) -> tuple[dict[str, Verification], tuple[str, ...]]:
    """Compare each signature of both models, and say which could not be fed.

    NotMeasurableError: the model cannot be run on made-up inputs.
    """
    given, converted = map(_signatures_of, (job.given, draft))
    found: dict[str, Verification] = {}
    remarks: list[str] = []
    for name, function in progress.each(tuple(given.items()), "comparing signatures"):
        try:
            inputs, words = _inputs(job, data.specs_of(function))
        except UnfitDataError as error:
            remarks.append(f"{name} is not verified: {error}")
            continue
        found[name] = compared(
            function,
            _taking_any_type(converted[name]),
            inputs,
            low_dtype=low_dtype,
            variables=function.variables,
            name=f"{name}, on {words}",
        )
    return found, tuple(remarks)


def compared_graphs(
    job: Job, draft: pathlib.Path, item: Item, low_dtype: str
) -> dict[str, Verification]:
    """Compare both frozen graphs; errors are those of `compared_signatures`."""
    graphs = [frozen_graph(path) for path in (job.given, draft)]
    specs = data.specs_of(graphs[0])
    inputs, words = _inputs(job, specs)
    float32, mixed = (_function_of(graph_def, item) for graph_def in graphs)
    name = f"graph, on {words}"
    return {"graph": compared(float32, mixed, inputs, low_dtype=low_dtype, name=name)}


def _inputs(job: Job, specs: Sequence[tf.TensorSpec]) -> tuple[data.Batch, str]:
    """Return inputs, the user's first or made up, and what they are, in words."""
    path = job.options.calibration
    if path is not None:
        return data.batches_from_file(path, specs)[0], str(path)
    size = job.options.batch or _BATCH
    return {spec.name: data.made_up(spec, size) for spec in specs}, "made-up inputs"


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
      name: of what is compared, for people.
      variables: that `float32` uses.
    """
    moved = {
        key: rounded(np.asarray(value), low_dtype) for key, value in inputs.items()
    }
    try:
        expected = _results(float32, inputs)
        runs = {"mixed": _results(mixed, inputs), "noise": _results(float32, inputs)}
        with _rounded_weights(variables, low_dtype):
            runs["rounded"] = _results(float32, moved)
    except tf.errors.OpError as error:
        raise NotMeasurableError(
            f"verify: the model fails on {name.partition(', on ')[2]}: "
            f"{error.message}. Give inputs that suit it with --calibration."
        ) from error
    return Verification(
        graph=name,
        checks=checks_of(expected, runs, dict.fromkeys(expected, OUTPUT)),
        low_dtype=low_dtype,
        tolerance=default_tolerance(low_dtype),
    )


def _results(function: Callable[..., Any], inputs: data.Batch) -> dict[str, Array]:
    return {n: np.asarray(value) for n, value in named_leaves(function(**inputs))}


def ranges_of_model(job: Job) -> tuple[Ranges | None, tuple[str, ...]]:
    """Return what the tensors of a SavedModel keep to, in all signatures that fit.

    None without data. With it comes what is to be said of signatures that did not run;
    if none did, that is the error.
    """
    path = job.options.calibration
    if path is None:
        return None, ()
    signatures = _signatures_of(job.given)
    if not signatures:
        raise ConfigError(
            f"--calibration: {job.source} has no signature that could be fed; export "
            "it with one."
        )
    found: list[Ranges] = []
    errors: dict[str, AmpError] = {}
    for name, function in signatures.items():
        try:
            batches = data.batches_from_file(path, data.specs_of(function))
            found.append(ranges_of(function, batches))
        except (UnfitDataError, NotMeasurableError) as error:
            errors[name] = error
    if not found:
        raise errors[_nearest(signatures, path)]
    return joined(found), tuple(
        f"{name} did not run on the data, and what it alone computes may leave the "
        f"type's range: {why}"
        for name, why in errors.items()
    )


def ranges_of_graph(job: Job, graph_def: GraphDef, item: Item) -> Ranges | None:
    """Return what the tensors of a bare graph keep to; None without data."""
    path = job.options.calibration
    if path is None:
        return None
    batches = data.batches_from_file(path, data.specs_of(graph_def))
    return ranges_of(graph_def, batches, fetches=item.fetch)


def _nearest(signatures: Mapping[str, Any], path: pathlib.Path) -> str:
    """Name the signature whose inputs the file's arrays name, else the default one."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = set(archive.files)
    except data.UNREADABLE:
        names = set()
    for name, function in signatures.items():
        if {spec.name for spec in data.specs_of(function)} == names:
            return name
    return _DEFAULT if _DEFAULT in signatures else next(iter(signatures))


def _signatures_of(folder: pathlib.Path) -> dict[str, Any]:
    """Load a SavedModel for running it as it is; return its signatures."""
    with unmixed():
        return data.loaded_signatures(folder)


def _function_of(graph_def: GraphDef, item: Item) -> Callable[..., Any]:
    """Return what runs a bare graph, given its inputs by name."""
    specs = data.specs_of(graph_def)

    def run(*inputs: Any) -> list[Any]:
        fed = {s.name: value for s, value in zip(specs, inputs, strict=True)}
        found: list[Any] = tf.graph_util.import_graph_def(
            graph_def, fed, [f"{name}:0" for name in item.fetch], name=""
        )
        return found

    signature = [tf.TensorSpec(spec.shape, spec.dtype) for spec in specs]
    with unmixed():
        traced = tf.function(run, input_signature=signature).get_concrete_function()
    return lambda **inputs: traced(*(inputs[spec.name] for spec in specs))


def _taking_any_type(signature: Any) -> Callable[..., Any]:
    """Return a signature that may be called with float32 where it takes 16 bits."""
    specs = signature.structured_input_signature[1]

    def call(**inputs: Any) -> Any:
        return signature(
            **{
                name: tf.cast(value, specs[name].dtype)
                if specs[name].dtype.is_floating
                else tf.convert_to_tensor(value)
                for name, value in inputs.items()
            }
        )

    return call


@contextlib.contextmanager
def _rounded_weights(variables: Iterable[Any], low_dtype: str) -> Iterator[None]:
    """Let variables hold what 16 bits make of their values, for a while."""
    kept = [(variable, variable.numpy()) for variable in variables]
    for variable, value in kept:
        variable.assign(rounded(value, low_dtype))
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)
