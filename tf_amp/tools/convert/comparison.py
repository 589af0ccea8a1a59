"""Run a converted model beside the one it was made of."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tf_amp.errors import NotMeasurableError, UnfitDataError
from tf_amp.tools import progress
from tf_amp.tools.convert.files import frozen
from tf_amp.tools.convert.running import (
    batches_for,
    function_of,
    signatures_of,
    with_rounded_weights,
)
from tf_amp.tools.graph_runs.batches import specs_of, specs_of_graph
from tf_amp.tools.graph_runs.differences import rounded
from tf_amp.tools.verify.comparing import compare

if TYPE_CHECKING:
    from grappler_pass.graph.view import Item
    from tf_amp.tools.convert.job import Job
    from tf_amp.tools.verify.verification import Verification


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What came of the signatures of a converted model.

    Attributes:
      verifications: by signature.
      left_out: signatures that could not be fed, each with the reason.
    """

    verifications: Mapping[str, Verification] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def remarks(self) -> tuple[str, ...]:
        """Say what was not compared."""
        return tuple(f"{n} is not verified: {why}" for n, why in self.left_out.items())


def comparison_of(job: Job, draft: pathlib.Path, low_dtype: str) -> Comparison:
    """Compare each signature of both models, if the job asks for it.

    Raises:
      NotMeasurableError: the model cannot be run on made-up inputs.
    """
    if not job.options.verify:
        return Comparison()
    models = [signatures_of(path) for path in (job.given, draft, job.given)]
    found, left_out = {}, {}
    signatures = tuple(models[0][1].items())
    for name, function in progress.each(signatures, "comparing signatures"):
        mixed, other = models[1][1][name], models[2][1][name]
        try:
            inputs, words = _first_batch(job, function)
        except UnfitDataError as error:
            left_out[name] = str(error)
            continue
        with_rounded = with_rounded_weights(
            other, functools.partial(rounded, low_dtype=low_dtype)
        )
        found[name] = _compared(
            function,
            _taking_any_type(mixed),
            inputs,
            low_dtype,
            f"{name}, on {words}",
            with_rounded,
        )
    return Comparison(found, left_out)


def frozen_verifications(
    job: Job, draft: pathlib.Path, item: Item, low_dtype: str
) -> dict[str, Verification]:
    """Compare both graphs, if the job asks for it.

    Raises:
      NotMeasurableError: the graph cannot be run on made-up inputs.
    """
    if not job.options.verify:
        return {}
    graphs = [frozen.read(path) for path in (job.given, draft)]
    specs = specs_of_graph(graphs[0])
    batches, words = batches_for(specs, job.options)
    inputs = [batches[0][spec.name] for spec in specs]
    float32, mixed = (function_of(graph_def, item) for graph_def in graphs)
    name = f"graph, on {words}"
    return {"graph": _compared(float32, mixed, inputs, low_dtype, name, None)}


def _first_batch(job: Job, function: Any) -> tuple[Any, str]:
    batches, words = batches_for(specs_of(function), job.options)
    return batches[0], words


def _taking_any_type(signature: Any) -> Callable[..., Any]:
    """Return a signature that may be called with float32 where it takes 16 bits."""
    import tensorflow as tf

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


def _compared(
    float32: Any,
    mixed: Any,
    inputs: Any,
    low_dtype: str,
    name: str,
    with_rounded: Any,
) -> Verification:
    import tensorflow as tf

    try:
        return compare(
            float32,
            mixed,
            inputs,
            low_dtype=low_dtype,
            with_rounded_weights=with_rounded,
            name=name,
        )
    except tf.errors.OpError as error:
        raise NotMeasurableError(
            f"verify: the model fails on {name.partition(', on ')[2]}: "
            f"{error.message}. Give inputs that suit it with --calibration."
        ) from error
