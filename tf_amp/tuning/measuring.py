"""Seconds of one op at several dtypes, measured on the present device.

Decides what is run: which chains of the op, on which inputs, and whether there is time
and memory for it. Ops bound by memory are timed a second time on inputs that the cache
has lost. At most a quarter of the free memory is held, until the measurement ends.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from absl import logging

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec
from grappler_pass.costs import attrs_from_node_def as _attrs_of
from grappler_pass.costs.calls import DTYPE_BYTES
from grappler_pass.costs.price_list import Measured
from grappler_pass.costs.probes import MEASURED_DTYPE, Probe
from grappler_pass.op_lists import OpLists
from tf_amp.op_timing import Chain, TimingGraph, elapsed, timing_graph
from tf_amp.tuning import memory
from tf_amp.tuning.apart import run_apart
from tf_amp.tuning.runnable import check_runnable, node_at, op_at
from tf_amp.tuning.synthetic import Inputs, Unfit, inputs_of
from tf_amp.tuning.turns import SLOW_SECONDS, Series, Subject, take_turns

# A run of a chain takes long against the cost of starting it.
_CHAIN_SECONDS = 4e-4
_LONGEST_CHAIN = 16
# Inputs to lose in the cache: sets of them, together larger than the cache by a half.
_MOST_SETS = 12
_BEYOND_CACHE = 1.5
# An op predicted to take so many times the time there is, is not begun.
_HOPELESS = 2.0
_WAIT_SECONDS = 60.0

_FAILURES = (
    *(tf.errors.OpError, TypeError, ValueError, NotImplementedError),
    MemoryError,
)


def measure(
    probe: Probe, dtypes: Sequence[str], device_type: str, seconds: float
) -> tuple[Measured, ...]:
    """Measure an op in a thread of its own, for about `seconds` at most.

    Args:
      probe: the op; what has state or effects is not run.
      dtypes: to measure it at.
      device_type: "CPU" or "GPU".
      seconds: not exceeded but by the runs under way.

    Returns:
      A row per dtype; none for one without a kernel, whose op fails, or for which
      memory or time does not suffice.
    """
    return run_apart(
        lambda stopped: measure_here(probe, dtypes, device_type, seconds),
        seconds + _WAIT_SECONDS,
    )


def measure_here(
    probe: Probe, dtypes: Sequence[str], device_type: str, seconds: float
) -> tuple[Measured, ...]:
    """Measure in the calling thread, which `run_apart` must have made."""
    end = time.perf_counter() + seconds
    with timing_graph(f"/{device_type}:0") as graph:
        share = seconds / max(len(dtypes), 1)
        found = [_subject(graph, probe, dtype, device_type, share) for dtype in dtypes]
        subjects = [subject for subject in found if subject is not None]
        try:
            take_turns(subjects, end)
        except tf.errors.OpError as error:
            logging.vlog(1, "%s is not measured: %s", probe.op, error)
            return ()
    return tuple(
        Measured(probe, subject.dtype, subject.sample())
        for subject in subjects
        if subject.is_trustworthy
    )


def _subject(
    graph: TimingGraph, probe: Probe, dtype: str, device_type: str, seconds: float
) -> Subject | None:
    """Put an op with its inputs into the graph and warm it up, or say why not."""
    try:
        check_runnable(probe, dtype, device_type)
        inputs = inputs_of(probe, dtype)
        call = _call_at(probe, dtype, device_type, inputs)
        predicted = _rough_model(device_type).price(call, dtype).seconds
        _check_affordable(call, predicted, seconds)
        sets = _input_sets(graph, inputs, _sets(probe, call, device_type))
        add_op = functools.partial(op_at, probe, dtype, device_type)
        chains = _chains(graph, add_op, sets, predicted)
        graph.fill()
        return _warmed_up(dtype, chains, seconds)
    except _FAILURES as error:
        logging.vlog(1, "%s is not measured in %s: %s", probe.op, dtype, error)
        return None


@dataclass(frozen=True)
class _Chains:
    """One op: once, several times in a row, and on inputs lost in the cache."""

    single: Chain
    several: Chain
    cold: Chain | None


def _chains(
    graph: TimingGraph,
    call: Callable[[Sequence[Any]], Any],
    sets: Sequence[Sequence[Any]],
    predicted: float,
) -> _Chains:
    single = graph.chain(call, sets[:1], 1)
    length = int(min(_CHAIN_SECONDS / max(predicted, 1e-9), _LONGEST_CHAIN))
    several = graph.chain(call, sets[:1], length) if length > 1 else single
    cold = graph.chain(call, sets, len(sets)) if len(sets) > 1 else None
    return _Chains(single, several, cold)


def _warmed_up(dtype: str, chains: _Chains, seconds: float) -> Subject:
    """Run each chain once, untimed: TensorFlow prepares what is run first."""
    first = elapsed(chains.single.run)
    if first > seconds:
        return Subject(dtype, Series(chains.single, [first]))
    once = elapsed(chains.single.run)
    is_slow = once * chains.several.length > min(seconds, SLOW_SECONDS)
    warm = Series(chains.single if is_slow else chains.several)
    cold = None if chains.cold is None else Series(chains.cold)
    subject = Subject(dtype, warm, cold)
    for series in filter(None, (subject.warm, subject.cold)):
        series.chain.run()
        series.chain.base()
    return subject


def _call_at(probe: Probe, dtype: str, device_type: str, inputs: Inputs) -> OpCall:
    """Return the call as pricing sees it, with the outputs that TensorFlow infers."""
    with tf.Graph().as_default():
        tensors = [
            tf.constant(make())
            if position in inputs.constants
            else tf.compat.v1.placeholder(_dtype_at(spec, dtype), spec.dims)
            for position, (make, spec) in enumerate(
                zip(inputs.values, probe.inputs, strict=True)
            )
        ]
        op = op_at(probe, dtype, device_type, tensors)
        return OpCall(
            probe.op,
            _attrs_of(node_at(probe, dtype, device_type)),
            tuple(map(_spec_of, tensors)),
            tuple(map(_spec_of, op.outputs)),
        )


def _dtype_at(spec: TensorSpec, dtype: str) -> str:
    """Return the dtype of an input of a probe measured at `dtype`."""
    return dtype if spec.dtype == MEASURED_DTYPE else spec.dtype


def _spec_of(tensor: Any) -> TensorSpec:
    shape = None if tensor.shape.rank is None else tuple(tensor.shape)
    return TensorSpec(shape, tensor.dtype.base_dtype.name)


def _check_affordable(call: OpCall, predicted: float, seconds: float) -> None:
    """Raise where one run would take far too long, or hold too much memory."""
    if predicted > _HOPELESS * seconds:
        raise Unfit(f"{predicted:.2g} s predicted, {seconds:.2g} s left")
    # Inputs are held twice while they are made.
    held = 2 * _bytes(call.inputs) + _bytes(call.outputs)
    if held > memory.most_bytes():
        raise Unfit(f"it would hold {held >> 20} MiB")


@functools.cache
def _rough_model(device_type: str) -> CostModel:
    name = "v100" if device_type == "GPU" else "cpu-generic"
    return CostModel(DeviceProfile.load(name))


def _bytes(specs: Sequence[TensorSpec]) -> int:
    return sum(spec.elements * DTYPE_BYTES.get(spec.dtype, 8) for spec in specs)


def _sets(probe: Probe, call: OpCall, device_type: str) -> int:
    """Return how many sets of inputs are more than the cache holds; 1: all are."""
    held = _bytes(call.inputs)
    is_product = OpLists.for_dtype("bfloat16").list_of(probe.op) == "allow"
    if is_product or device_type != "CPU" or not held:
        return 1
    sets = math.ceil(_BEYOND_CACHE * memory.cache_bytes() / held)
    affordable = sets * held * 2 + _bytes(call.outputs) <= memory.most_bytes()
    return sets if sets <= _MOST_SETS and affordable else 1


def _input_sets(graph: TimingGraph, inputs: Inputs, count: int) -> list[list[Any]]:
    """Hold `count` sets of inputs, all with the same constants."""
    fixed = sorted(inputs.constants)
    free = [p for p in range(len(inputs.values)) if p not in inputs.constants]
    constants = graph.constants([inputs.values[p]() for p in fixed])
    arrays = [inputs.values[p]() for p in free]
    sets = []
    for number in range(count):
        # TensorFlow may read an array where it lies: each set needs its own.
        held = graph.hold([array.copy() if number else array for array in arrays])
        tensors = dict(zip((*fixed, *free), (*constants, *held), strict=True))
        sets.append([tensors[p] for p in range(len(inputs.values))])
    return sets
