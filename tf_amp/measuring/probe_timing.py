"""Seconds of one op at several dtypes, measured on the present device.

Decides what is run: which chains of the op, on which inputs, and whether there is time
and memory for it. Ops bound by memory are timed a second time on inputs that the cache
has lost. At most a quarter of the free memory is held, until the measurement ends.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from absl import logging

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec
from grappler_pass.costs import attrs_from_node_def as _attrs_of
from grappler_pass.costs.calls import DTYPE_BYTES
from grappler_pass.costs.database.price_list import Measured
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Probe
from grappler_pass.costs.work.op_classes import GATHER
from grappler_pass.graph.device_types import device_type_of
from grappler_pass.graph.op_lists import OpLists
from tf_amp.measuring.op_timing import (
    Chain,
    TimingGraph,
    chain_length,
    elapsed,
    timing_graph,
)
from tf_amp.measuring.sandbox import memory
from tf_amp.measuring.sandbox.runnable import check_runnable, node_at, op_at
from tf_amp.measuring.sandbox.synthetic import UnfitError, inputs_of
from tf_amp.measuring.turns import SLOW_SECONDS, is_trustworthy, sample_of, take_turns

# Inputs to lose in the cache: sets of them, together larger than the cache by a half.
_MOST_SETS = 12
# Look-ups in one table hold but the rows' numbers.
_MOST_LOOKUPS = 64
_BEYOND_CACHE = 1.5
# An op predicted to take so many times the time there is, is not begun.
_HOPELESS = 2.0
# Of large inputs; they are made as arrays, and copied to where they are held.
_MADE_BYTES_PER_SECOND = 1e9

_FAILURES = (
    *(tf.errors.OpError, TypeError, ValueError, NotImplementedError),
    MemoryError,
)
_SHORTAGES = (tf.errors.ResourceExhaustedError, MemoryError)


def measure_here(
    probe: Probe, dtypes: Sequence[str], device: str, seconds: float
) -> tuple[Measured, ...]:
    """Measure an op in the calling thread, which `run_in_own_thread` must have made.

    Args:
      probe: the op; what has state or effects is not run.
      dtypes: to measure it at.
      device: where it is run, such as "/CPU:0".
      seconds: not exceeded but by the runs under way.

    Returns:
      A row per dtype; none for one without a kernel, whose op fails, or for which
      memory or time does not suffice.
    """
    begin = time.perf_counter()
    end = begin + seconds
    device_type = device_type_of(device)
    with timing_graph(device) as graph:
        attempts = [_Attempt(graph, probe, dtype, device_type) for dtype in dtypes]
        share = seconds / max(len(dtypes), 1)
        running = _ready(attempts, share)
        try:
            # What was too slow to warm up has been timed already.
            warm = [attempt.warm for attempt in running]
            take_turns([chain for chain in warm if not chain.runs], end)
            now = time.perf_counter()
            if end - now > now - begin:
                take_turns(_cold_chains(running), end)
        except _FAILURES as error:
            logging.vlog(1, "%s is not measured further: %s", probe.op, error)
    return tuple(
        Measured(probe, attempt.dtype, sample_of(attempt.warm, attempt.cold))
        for attempt in running
        if is_trustworthy(attempt.warm)
    )


def _ready(attempts: Sequence[_Attempt], seconds: float) -> list[_Attempt]:
    """Return those that have warmed up; without memory for one, no other is begun.

    TensorFlow waits ten seconds for memory before it gives up.
    """
    ready = []
    for attempt in attempts:
        if attempt.is_ready(seconds):
            ready.append(attempt)
        elif attempt.is_short_of_memory:
            break
    return ready


@dataclass
class _Attempt:
    """One op at one dtype, in a graph where it is timed on warm data, and on cold."""

    graph: TimingGraph
    probe: Probe
    dtype: str
    device_type: str
    call: OpCall = field(init=False)
    warm: Chain = field(init=False)
    cold: Chain | None = None
    is_short_of_memory: bool = False

    def is_ready(self, seconds: float) -> bool:
        """Put the op with its inputs into the graph and warm it up; say why not."""
        try:
            check_runnable(self.probe, self.dtype, self.device_type)
            self.call = _call_at(self.probe, self.dtype, self.device_type)
            predicted = _rough_model(self.device_type).price(self.call, self.dtype)
            _check_affordable(self.call, predicted.seconds, seconds, self.device_type)
            self.warm = self._warmed_up(predicted.seconds, seconds)
        except _FAILURES as error:
            op, dtype = self.probe.op, self.dtype
            logging.vlog(1, "%s is not measured in %s: %s", op, dtype, error)
            self.is_short_of_memory = isinstance(error, _SHORTAGES)
            return False
        return True

    def _warmed_up(self, predicted: float, seconds: float) -> Chain:
        """Run each chain once, untimed: TensorFlow prepares what is run first."""
        sets = self._input_sets(1)
        single = several = self._chain(sets, 1)
        length = chain_length(predicted)
        if length > 1:
            several = self._chain(sets, length)
        self.graph.fill()
        first = elapsed(single.run)
        if first > seconds:
            single.runs.append(first)
            return single
        once = elapsed(single.run)
        is_slow = once * length > min(seconds, SLOW_SECONDS)
        return _run_once(single if is_slow else several)

    def add_cold(self, sets: int) -> Chain:
        """Time the op, too, on so many sets of inputs that the cache has lost them."""
        chain = self._chain(self._input_sets(sets), sets)
        self.graph.fill()
        self.cold = _run_once(chain)
        return self.cold

    def _chain(self, sets: Sequence[Sequence[Any]], length: int) -> Chain:
        add_op = functools.partial(op_at, self.probe, self.dtype, self.device_type)
        return self.graph.chain(add_op, sets, length)

    def _input_sets(self, count: int) -> list[list[Any]]:
        """Hold `count` sets of inputs, all with the same constants and tables."""
        inputs = inputs_of(self.probe, self.dtype)
        fixed = sorted(inputs.constants)
        constants = self.graph.constants([inputs.values[p]() for p in fixed])
        common = dict(zip(fixed, constants, strict=True))
        sets = []
        for number in range(count):
            values = inputs_of(self.probe, self.dtype, number).values
            free = [p for p in range(len(values)) if p not in common]
            # TensorFlow may read an array where it lies: each set has its own.
            held = self.graph.hold([values[p]() for p in free])
            tensors = {**common, **dict(zip(free, held, strict=True))}
            common.update((p, tensors[p]) for p in _tables(self.probe))
            sets.append([tensors[p] for p in range(len(values))])
        return sets


def _run_once(chain: Chain) -> Chain:
    chain.run()
    chain.base()
    return chain


def _cold_chains(attempts: Sequence[_Attempt]) -> list[Chain]:
    """Add chains on lost inputs for ops bound by memory: for all dtypes or for none."""
    needed = [_sets(attempt) for attempt in attempts]
    if not needed:
        return []
    most = _MOST_LOOKUPS if _tables(attempts[0].probe) else _MOST_SETS
    # The largest decides, or else one dtype alone would be timed cold.
    if not 0 < min(needed) <= most:
        return []
    held = sum(
        2 * (sets * _own_bytes(attempt) + _bytes(attempt.call.inputs))
        + _bytes(attempt.call.outputs)
        for sets, attempt in zip(needed, attempts, strict=True)
    )
    if held > _most_bytes(attempts[0].device_type):
        return []
    pairs = zip(needed, attempts, strict=True)
    return [attempt.add_cold(sets) for sets, attempt in pairs if sets > 1]


def _call_at(probe: Probe, dtype: str, device_type: str) -> OpCall:
    """Return the call as pricing sees it, with the outputs that TensorFlow infers."""
    inputs = inputs_of(probe, dtype)
    with tf.Graph().as_default():
        tensors = [
            tf.constant(make())
            if position in inputs.constants
            else tf.compat.v1.placeholder(
                dtype if spec.dtype == MEASURED_DTYPE else spec.dtype, spec.dims
            )
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


def _spec_of(tensor: Any) -> TensorSpec:
    shape = None if tensor.shape.rank is None else tuple(tensor.shape)
    return TensorSpec(shape, tensor.dtype.base_dtype.name)


def _check_affordable(
    call: OpCall, predicted: float, seconds: float, device_type: str
) -> None:
    """Raise where one run with its inputs takes far too long, or too much memory."""
    made = _bytes(call.inputs)
    predicted += made / _MADE_BYTES_PER_SECOND
    if predicted > _HOPELESS * seconds:
        raise UnfitError(f"{predicted:.2g} s predicted, {seconds:.2g} s left")
    # Inputs are held twice while they are made.
    held = 2 * made + _bytes(call.outputs)
    if held > _most_bytes(device_type):
        raise UnfitError(f"it would hold {held >> 20} MiB")


def _most_bytes(device_type: str) -> int:
    """Return what may be held on a device and, to make its inputs, on the host."""
    return min(map(memory.most_bytes, {"CPU", device_type}))


@functools.cache
def _rough_model(device_type: str) -> CostModel:
    name = "v100" if device_type == "GPU" else "cpu-generic"
    return CostModel(DeviceProfile.load(name))


def _bytes(specs: Sequence[TensorSpec]) -> int:
    return sum(spec.elements * DTYPE_BYTES.get(spec.dtype, 8) for spec in specs)


def _tables(probe: Probe) -> tuple[int, ...]:
    """Return the inputs of which an op reads but some rows: all sets share them."""
    return (0,) if probe.op in GATHER else ()


def _own_bytes(attempt: _Attempt) -> int:
    """Return what a set brings into the cache; of a table, the rows looked up."""
    inputs = attempt.call.inputs
    tables = _tables(attempt.probe)
    own = _bytes([spec for p, spec in enumerate(inputs) if p not in tables])
    looked_up = _bytes(attempt.call.outputs)
    return own + sum(min(looked_up, _bytes(inputs[p : p + 1])) for p in tables)


def _sets(attempt: _Attempt) -> int:
    """Return how many sets of inputs are more than the cache holds; 0: never mind."""
    held = _own_bytes(attempt)
    is_product = OpLists.for_dtype("bfloat16").list_of(attempt.probe.op) == "allow"
    if is_product or attempt.device_type != "CPU" or not held:
        return 0
    return math.ceil(_BEYOND_CACHE * memory.cache_bytes() / held)
