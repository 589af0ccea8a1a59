"""Inputs to run an op on: real shapes, values made up but valid.

Floating values lie in [0.5, 0.9]: no denormals, defined under logarithm, root and arc
sine, and far from overflow. Integers that select (indices, labels, segments) lie within
what they select from, at random as real ones do. Which integers those are is known for
the ops of a table; an op that takes other integers is not run at all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.framework.attr_value_pb2 import AttrValue

from grappler_pass.costs.calls import FLOATING, TensorSpec
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Constant, Probe
from grappler_pass.graph.type_slots import op_def_of
from tf_amp.errors import AmpError

Array = npt.NDArray[Any]
Make = Callable[[], Array]

_LEAST, _MOST = 0.5, 0.9
# A prime: rows of usual lengths then differ.
_PERIOD = 4093

_FLOATS = FLOATING | {"float64"}
_INTEGERS = frozenset("int8 uint8 int16 uint16 int32 uint32 int64 uint64".split())


class UnfitError(AmpError, ValueError):
    """An op cannot be run on made-up inputs; the message says why."""


class Inputs(NamedTuple):
    """Inputs of one run at one dtype, by position.

    Attributes:
      values: makes the array.
      constants: positions of small operands that belong in the graph itself.
    """

    values: tuple[Make, ...]
    constants: frozenset[int]


def inputs_of(probe: Probe, dtype: str, number: int = 0) -> Inputs:
    """Return how to make the inputs of a probe at a dtype.

    What integers select differs from one numbered set to the next.

    Raises:
      UnfitError: an input is of a type, or selects in a way, that is not known here.
    """
    constants = dict(probe.constants)
    names = argument_names(probe)
    if len(names) != len(probe.inputs):
        raise UnfitError(
            f"{probe.op} takes {len(names)} inputs, not {len(probe.inputs)}"
        )
    values = [
        _from_constant(constants[position])
        if position in constants
        else _from_spec(probe, spec, name, dtype, number)
        for position, (spec, name) in enumerate(zip(probe.inputs, names, strict=True))
    ]
    return Inputs(tuple(values), frozenset(constants))


def argument_names(probe: Probe) -> tuple[str, ...]:
    """Return the OpDef's name of each input; a repeated argument's for each of it."""
    op_def = op_def_of(probe.op)
    if op_def is None:
        raise UnfitError(f"{probe.op} is not an op of this TensorFlow")
    attrs = dict(probe.attrs)
    defaults = {attr.name: attr.default_value for attr in op_def.attr}

    def count(arg: op_def_pb2.OpDef.ArgDef) -> int:
        counted = arg.number_attr or arg.type_list_attr
        if not counted:
            return 1
        given = attrs.get(counted)
        value = defaults[counted] if given is None else attr_from_text(given)
        return int(value.i) if arg.number_attr else len(value.list.type)

    return tuple(arg.name for arg in op_def.input_arg for _ in range(count(arg)))


@functools.lru_cache(maxsize=4096)
def attr_from_text(text: str) -> AttrValue:
    """Read an attribute of a probe; what is returned must not be written."""
    return text_format.Parse(text, AttrValue())


def _from_constant(constant: Constant) -> Make:
    dtype = _numpy_dtype(constant.dtype)
    return lambda: np.array(constant.values, dtype).reshape(constant.shape)


def _from_spec(
    probe: Probe, spec: TensorSpec, name: str, dtype: str, number: int
) -> Make:
    wanted = dtype if spec.dtype == MEASURED_DTYPE else spec.dtype
    shape = spec.dims
    if wanted in _FLOATS:
        return lambda: _floats(shape, wanted)
    if wanted == "bool":
        return lambda: _integers(shape, "int32", 2, number) > 0
    if wanted not in _INTEGERS:
        raise UnfitError(f"{probe.op} takes {wanted}")
    if probe.op in _ANY_INTEGER:
        return lambda: _integers(shape, wanted, 100, number)
    limit = _LIMITS.get((probe.op, name))
    if limit is None:
        raise UnfitError(f"{probe.op} takes integers {name!r} of unknown meaning")
    most = limit(_Call(probe))
    if (probe.op, name) in _SORTED:
        return lambda: np.sort(_integers(shape, wanted, most, number), axis=None)
    return lambda: _integers(shape, wanted, most, number)


def _floats(shape: Sequence[int], dtype: str) -> Array:
    """Return values that repeat after some thousands: cheap even where large."""
    few = np.random.default_rng(0).uniform(_LEAST, _MOST, _PERIOD)
    return np.resize(few.astype(_numpy_dtype(dtype)), shape)


def _integers(shape: Sequence[int], dtype: str, limit: int, number: int) -> Array:
    """Return integers from 0 to `limit` - 1, drawn alike for one number."""
    random = np.random.default_rng(number)
    return random.integers(max(limit, 1), size=shape).astype(_numpy_dtype(dtype))


def _numpy_dtype(name: str) -> Any:
    return tf.as_dtype(name).as_numpy_dtype


class _Call:
    """A probe, with its inputs by the names of the OpDef."""

    def __init__(self, probe: Probe) -> None:
        self._shapes = {
            name: spec.dims
            for name, spec in zip(argument_names(probe), probe.inputs, strict=True)
        }
        constants = dict(probe.constants)
        self._values = {
            name: constants[position].values
            for position, name in enumerate(argument_names(probe))
            if position in constants
        }

    def size(self, name: str, axis: int) -> int:
        shape = self._shapes[name]
        return shape[axis] if shape else 1

    def smallest(self, name: str) -> int:
        return min(self._shapes[name], default=1)

    def value(self, name: str, default: int | None = None) -> int:
        values = self._values.get(name)
        if values:
            return int(min(values))
        if default is None:
            raise UnfitError(f"the values of {name!r} are not known")
        return default


_ANY_INTEGER = frozenset({"Cast"})
_SEGMENTED = ("Sum", "Mean", "Max", "Min", "Prod")
# Integers that must be valid: (op, name of the input) -> what they must be less than.
_LIMITS: Mapping[tuple[str, str], Callable[[_Call], int]] = {
    ("Gather", "indices"): lambda call: call.size("params", 0),
    ("GatherV2", "indices"): lambda call: call.size("params", call.value("axis", 0)),
    ("GatherNd", "indices"): lambda call: call.smallest("params"),
    ("TensorScatterAdd", "indices"): lambda call: call.smallest("tensor"),
    ("TensorScatterSub", "indices"): lambda call: call.smallest("tensor"),
    ("TensorScatterUpdate", "indices"): lambda call: call.smallest("tensor"),
    ("ScatterNd", "indices"): lambda call: call.value("shape"),
    ("OneHot", "indices"): lambda call: call.value("depth"),
    ("SparseSoftmaxCrossEntropyWithLogits", "labels"): lambda call: call.size(
        "features", -1
    ),
    ("ReverseSequence", "seq_lengths"): lambda call: 2,
    **{
        (f"UnsortedSegment{kind}", "segment_ids"): lambda call: call.value(
            "num_segments"
        )
        for kind in _SEGMENTED
    },
    **{
        (f"Segment{kind}", "segment_ids"): lambda call: call.size("segment_ids", 0)
        for kind in _SEGMENTED
    },
}
_SORTED = frozenset({(f"Segment{kind}", "segment_ids") for kind in _SEGMENTED})
