"""`tf_amp.verify` and `tf_amp.ranges`: functions, models and SavedModels at hand."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_amp.config.ranges import DEFAULT_UNDERFLOW, Ranges
from tf_amp.config.setting_values import checked_patterns, checked_tolerance
from tf_amp.run import batches as data
from tf_amp.run import progress
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.choice import Choice
from tf_amp.tools.explain import explanation
from tf_amp.tools.ranges.ranging import joined, ranges_of
from tf_amp.tools.verify.function_cases import case_from_function, case_of
from tf_amp.tools.verify.verification import TensorCheck, Verdict, Verification
from tf_amp.tools.verify.verifying import verified


def verify(
    fn: Any,
    *args: Any,
    dtype: str | None = None,
    opt_level: str | None = None,
    exclude: Iterable[str] | None = None,
    tolerance: float | None = None,
    bisect: bool = False,
    fetches: Iterable[str] | None = None,
    **kwargs: Any,
) -> Verification:
    """Run a function in float32 and as it would be rewritten, and compare.

    Every result is compared, and of a training step the gradient of every variable.
    Nothing of the program changes: variables are copies, with the values they have now.

    Args:
      fn: a `tf.function`, any callable it could wrap (a Keras model), a
        ConcreteFunction, or a GraphDef.
      *args: what it is called with; of a `tf.TensorSpec` the values are made up; for a
        GraphDef, its fetches, one by one or in one list.
      dtype: "bfloat16" or "float16"; as in force for the function by default.
      opt_level: "O1" to "O3"; as in force by default.
      exclude: regular expressions, or `@FILE`, of what stays float32.
      tolerance: largest relative error; by default 8 roundings of the type.
      bisect: find the operations that must be float32 where it does not hold.
      fetches: names of the nodes whose outputs are read, for a GraphDef.
      **kwargs: named arguments of the function.

    Raises:
      UnfitDataError: the arguments are not those of the function.
      NotMeasurableError: it cannot be run outside of its program; the message says why.
      ConfigError: a setting is unknown, or an argument is not one of the function's.
    """
    check_tensorflow()
    explanation.check_named(verify, fn, kwargs)
    choice = Choice(dtype, opt_level, exclude=checked_patterns(exclude or ()))
    case = case_of(fn, args, kwargs, choice, fetches)
    return verified(case, tolerance=checked_tolerance(tolerance), bisect=bisect)


def verify_saved_model(
    folder: pathlib.Path,
    choice: Choice,
    *,
    signature: str | None = None,
    file: pathlib.Path | None = None,
    batch: int | None = None,
    tolerance: float | None = None,
    bisect: bool = False,
) -> tuple[Verification, ...]:
    """Verify each signature of a SavedModel, or the one named.

    The file is an .npz with data; None: made-up data, of `batch` rows where the model
    leaves that open. The tolerance and `bisect` are as for `verify`, and so are errors,
    beside those of `signatures_of`.
    """
    found: dict[str, Verification] = {}
    signatures = tuple(data.signatures_of(folder, signature).items())
    for name, function in progress.each(signatures, "verifying signatures"):
        values, words = [dict[str, Any]()], ""
        if file is not None:
            batches = data.batches_from_file(file, data.specs_of(function))
            values = [data.batch_by_placeholder(function, each) for each in batches]
            words = str(file)
        cases = (case_from_function(function, choice, each, batch) for each in values)
        found[name] = worst_of(
            [
                verified(case, tolerance=tolerance, bisect=bisect, data=words)
                for case in cases
            ]
        )
    return explanation.with_joined_names(
        found, lambda each: dataclasses.replace(each, graph="", plan="")
    )


def ranges(
    fn: Any,
    batches: Iterable[Any],
    *,
    limit: float | None = None,
    underflow: float = DEFAULT_UNDERFLOW,
    depth: int | None = None,
) -> Ranges:
    """Run a function in float32 on batches of data and return what its tensors keep to.

    Args:
      fn: a `tf.function`, any callable it could wrap (a Keras model), or a
        ConcreteFunction.
      batches: each an array, a sequence of them, or a mapping by name of argument.
      limit: largest magnitude that is safe in 16 bits; by default 512 in float16, and
        in bfloat16 what the type holds.
      underflow: largest share of a tensor's values that may become zero.
      depth: largest number of values that may be summed up for an element.

    Raises:
      UnfitDataError: a batch does not fit; the message names it and what is expected.
      NotMeasurableError: the function cannot be run by itself; the message says why.
    """
    check_tensorflow()
    given = list(batches)
    if not given:
        raise data.no_batch()
    function = _traced_for(fn, given[0])
    seen = ranges_of(function, given)
    return dataclasses.replace(seen, limit=limit, underflow=underflow, depth=depth)


def ranges_of_saved_model(
    folder: pathlib.Path, file: pathlib.Path, signature: str | None = None
) -> Ranges:
    """Return the ranges of a SavedModel's signatures, or of the one named.

    Errors are those of `verify_saved_model`.
    """
    return joined(
        ranges_of(function, data.batches_from_file(file, data.specs_of(function)))
        for function in data.signatures_of(folder, signature).values()
    )


def worst_of(found: Sequence[Verification]) -> Verification:
    """Return one verification for several of the same graph: each tensor's worst.

    The culprits are those of all.
    """
    first = next((each for each in found if not each.ok), found[0])
    worse = [*Verdict].index

    def badness(check: TensorCheck) -> tuple[int, int, float]:
        rank = worse(first.verdict_on(check))
        return rank, check.mixed.non_finite, check.mixed.relative

    columns = zip(*(each.checks for each in found), strict=True)
    worst = (max(column, key=badness) for column in columns)
    searched = [each.culprits for each in found if each.culprits is not None]
    culprits = dict.fromkeys(itertools.chain.from_iterable(searched))
    return dataclasses.replace(
        first,
        checks=tuple(worst),
        culprits=tuple(culprits) if searched else None,
        tries=sum(each.tries for each in found),
    )


def _traced_for(fn: Any, batch: Any) -> Any:
    """Return the graph of a function for batches like one, of any size."""
    if explanation.is_concrete(fn):
        return fn

    def spec(value: Any) -> Any:
        array = np.asarray(value)
        sizes = [None, *array.shape[1:]] if array.ndim else []
        dtype = tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)
        return tf.TensorSpec(sizes, dtype)

    if isinstance(batch, Mapping):
        named = {name: spec(value) for name, value in batch.items()}
        return explanation.concrete_function(fn, (), named)
    values = batch if isinstance(batch, tuple | list) else (batch,)
    return explanation.concrete_function(fn, tuple(map(spec, values)), {})
