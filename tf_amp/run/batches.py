"""Signatures of stored models, and data to run functions on, checked before a run."""

from __future__ import annotations

import pathlib
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from tf_amp.errors import ConfigError, ScriptMissingError, UnfitDataError
from tf_amp.run.graph_copy import Array
from tf_amp.tracing.graph_names import name_of

Batch = Mapping[str, Array]
Specs = Sequence[tf.TensorSpec]

# What NumPy raises, depending on what a file holds and where it ends.
UNREADABLE = (OSError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error)
# Of an axis whose size is open, the first one aside.
_MADE_UP_SIZE = 16


def specs_of(function: Any) -> tuple[tf.TensorSpec, ...]:
    """Return the tensors that a function is called with, by their names.

    It is a ConcreteFunction, or a GraphDef, which is fed its placeholders.
    """
    if isinstance(function, GraphDef):
        nodes = (node for node in function.node if node.op == "Placeholder")
        # `in` first: reading a missing key of a protobuf map creates it.
        return tuple(
            tf.TensorSpec(
                node.attr["shape"].shape if "shape" in node.attr else None,
                node.attr["dtype"].type,
                node.name,
            )
            for node in nodes
        )
    args, kwargs = function.structured_input_signature
    given = tf.nest.flatten([args, kwargs])
    specs = [spec for spec in given if isinstance(spec, tf.TensorSpec)]
    # Flattening follows sorted keys.
    names = [*(_name_of(s) for s in tf.nest.flatten(args)), *sorted(kwargs)]
    if len(names) != len(specs):
        names = list(map(_name_of, specs))
    named = zip(specs, names, strict=True)
    return tuple(tf.TensorSpec(spec.shape, spec.dtype, name) for spec, name in named)


def described(spec: tf.TensorSpec) -> str:
    """Describe what is expected of an input."""
    if spec.shape.rank is None:
        return f"{spec.name}: {spec.dtype.name}, any shape"
    sizes = ("?" if size is None else str(size) for size in spec.shape)
    return f"{spec.name}: {spec.dtype.name} [{', '.join(sizes)}]"


def loaded_signatures(folder: pathlib.Path) -> dict[str, Any]:
    """Load a SavedModel, and return its signatures by name, sorted."""
    loaded = tf.saved_model.load(str(folder))
    signatures = dict(sorted(loaded.signatures.items()))
    for function in signatures.values():
        # The model has to live as long as its functions are called.
        function.tf_amp_model = loaded
    return signatures


def signatures_of(folder: pathlib.Path, signature: str | None = None) -> dict[str, Any]:
    """Return the signatures of a SavedModel by name, or the one named.

    Raises:
      ScriptMissingError: the folder does not hold a SavedModel.
      ConfigError: it has no signature of that name, or none at all.
    """
    if not tf.saved_model.contains_saved_model(str(folder)):
        raise ScriptMissingError(f"{folder} does not hold a SavedModel.")
    signatures = loaded_signatures(folder)
    if not signatures:
        raise ConfigError(
            f"{folder} has no signatures to run; export it with some, as Keras' "
            "model.export(folder) does."
        )
    if signature is None:
        return signatures
    if signature not in signatures:
        raise ConfigError(
            f"{folder} has no signature {signature!r}; it has {', '.join(signatures)}."
        )
    return {signature: signatures[signature]}


def set_batch(graph_def: Any, batch: int) -> None:
    """Put a number, in place, where the first dimension of a placeholder is open."""
    for node in graph_def.node:
        # `in` first: reading a missing key of a protobuf map creates it.
        if node.op == "Placeholder" and "shape" in node.attr:
            sizes = node.attr["shape"].shape.dim
            if sizes and sizes[0].size < 0:
                sizes[0].size = batch


def batches_from_file(path: pathlib.Path, specs: Specs) -> tuple[Batch, ...]:
    """Read an .npz file with an array for every input.

    An array of the input's rank is one batch; one with an axis more, in front, holds a
    batch at each of its places.

    Raises:
      UnfitDataError: the file cannot be read, or its arrays do not fit; the message
        says what is expected.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except UNREADABLE as error:
        raise UnfitDataError(
            f"{path} cannot be read as an .npz file of arrays: {error}. "
            f"{_expected(specs)}"
        ) from error
    source = str(path)
    _check_names(arrays, specs, source)
    columns: dict[str, list[Array]] = {}
    for spec in specs:
        array = np.asarray(arrays[spec.name])
        is_one = spec.shape.is_compatible_with(array.shape)
        if not is_one and not (
            array.ndim and spec.shape.is_compatible_with(array.shape[1:])
        ):
            raise _unfit(array, spec, source)
        batches = [array] if is_one else array
        columns[spec.name] = [_checked(each, spec, source) for each in batches]
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UnfitDataError(f"{source}: numbers of batches differ: {listed}.")
    rows = zip(*columns.values(), strict=True)
    return tuple(dict(zip(columns, row, strict=True)) for row in rows)


def checked_batches(given: Iterable[Any], specs: Specs) -> tuple[Batch, ...]:
    """Return batches from a Python iterable: of mappings, sequences or single arrays.

    UnfitDataError names the one that does not fit, and what is expected.
    """
    found: list[Batch] = []
    for number, batch in enumerate(given, 1):
        source = f"batch {number}"
        arrays = batch
        if not isinstance(batch, Mapping):
            values = batch if isinstance(batch, tuple | list) else (batch,)
            if len(values) != len(specs):
                raise UnfitDataError(
                    f"{source} holds {len(values)} arrays for {len(specs)} inputs. "
                    f"{_expected(specs)}"
                )
            arrays = dict(zip((spec.name for spec in specs), values, strict=True))
        _check_names(arrays, specs, source)
        found.append(
            {s.name: _checked(np.asarray(arrays[s.name]), s, source) for s in specs}
        )
    if not found:
        raise no_batch()
    return tuple(found)


def made_up(spec: tf.TensorSpec, batch: int) -> Any:
    """Return synthetic values for an input, the same each time.

    `batch` is the size of the first axis, where that is open; an unknown rank is 2.
    """
    shape = spec.shape if spec.shape.rank is not None else (None,) * 2
    sizes = [
        size if size is not None else (_MADE_UP_SIZE if axis else batch)
        for axis, size in enumerate(shape)
    ]
    if spec.dtype == tf.string:
        return np.full(sizes, b"a", dtype=object)
    if spec.dtype.is_floating:
        values = np.random.default_rng(0).standard_normal(sizes)
        return values.astype("float32")
    return np.zeros(sizes, dtype=spec.dtype.as_numpy_dtype)


def no_batch() -> UnfitDataError:
    """Return the error for data that is none."""
    return UnfitDataError("The data holds no batch; at least one is needed.")


def _check_names(arrays: Mapping[str, Any], specs: Specs, source: str) -> None:
    names = {spec.name for spec in specs}
    if names == set(arrays):
        return
    missing = sorted(names - set(arrays))
    foreign = sorted(set(arrays) - names)
    wrong = [f"lacks {', '.join(missing)}"] if missing else []
    wrong += [f"holds {', '.join(foreign)}, which is no input"] if foreign else []
    raise UnfitDataError(f"{source} {' and '.join(wrong)}. {_expected(specs)}")


def _checked(array: Array, spec: tf.TensorSpec, source: str) -> Array:
    """Return an array in the input's type, if that holds every value of it."""
    # It holds the type itself, or one that loses little in it.
    kind, wanted = array.dtype.kind, spec.dtype
    if wanted == tf.string:
        is_same_kind = kind in "OSU"
    elif wanted.is_floating or wanted.is_integer:
        is_same_kind = kind in ("f" if wanted.is_floating else "iu")
    else:
        is_same_kind = array.dtype.name == wanted.name
    if not is_same_kind or not spec.shape.is_compatible_with(array.shape):
        raise _unfit(array, spec, source)
    if kind == "f" and np.isnan(array).any():
        count = int(np.isnan(array).sum())
        raise UnfitDataError(
            f"{source}: {spec.name} holds NaN ({count} of {array.size} values), of "
            "which nothing can be learned."
        )
    if wanted == tf.string:
        return array
    return array.astype(spec.dtype.as_numpy_dtype, copy=False)


def _unfit(array: Array, spec: tf.TensorSpec, source: str) -> UnfitDataError:
    sizes = ", ".join(map(str, array.shape))
    return UnfitDataError(
        f"{source}: {spec.name} is {array.dtype} [{sizes}]; expected is "
        f"{described(spec)}, or the same with an axis of batches in front."
    )


def _expected(specs: Specs) -> str:
    return f"Expected are: {'; '.join(map(described, specs)) or 'no inputs'}."


def _name_of(spec: Any) -> str:
    return str(getattr(spec, "name", None) or "input")


def arguments_by_placeholder(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Array]:
    """Return the values of a call by the names that a sandbox gives them."""
    places = _places_of(function)
    ordered: Any = (args, kwargs)
    try:
        bound = function.function_type.bind(*args, **kwargs)
        ordered = list(bound.arguments.values())
    except TypeError:
        # It may be called by the names of its TensorSpecs, too.
        names = [spec.name for spec in specs_of(function)]
        if not args and kwargs.keys() <= set(names):
            ordered = [kwargs[name] for name in names if name in kwargs]
    leaves = tf.nest.flatten(ordered, expand_composites=True)
    given = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
    if not given:
        return {}
    if len(given) != len(places):
        raise UnfitDataError(
            f"{name_of(function.graph)} takes {len(places)} tensors and received "
            f"{len(given)}. {_expected(specs_of(function))}"
        )
    found: dict[str, Array] = {}
    for place, value in zip(places, given, strict=True):
        if isinstance(value, tf.TensorSpec) or not hasattr(value, "__array__"):
            continue
        handle = place.dtype == tf.resource
        key = place.op.name if handle else f"{place.op.name}:0"
        found[key] = np.asarray(value)
    return found


def batch_by_placeholder(function: Any, batch: Batch) -> dict[str, Array]:
    """Return the values of a checked batch by the names that a sandbox gives them.

    The function is one that was traced, or a GraphDef.
    """
    if isinstance(function, GraphDef):
        return {f"{name}:0": value for name, value in batch.items()}
    places = _places_of(function)
    names = [spec.name for spec in specs_of(function)]
    return {
        f"{place.op.name}:0": batch[name]
        for place, name in zip(places, names, strict=True)
    }


def _places_of(function: Any) -> list[Any]:
    """Return the placeholders of a function's arguments."""
    captured = {id(placeholder) for _, placeholder in function.graph.captures}
    return [t for t in function.inputs if id(t) not in captured]
