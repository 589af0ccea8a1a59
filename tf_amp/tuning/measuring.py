"""Seconds of one op at several dtypes, measured on the present device.

The dtypes take turns, so that what disturbs one disturbs the others. The median counts,
as a step is slowed by what disturbs its ops too; the spread says how far to trust it.
Ops bound by memory are timed a second time on inputs that the cache has lost. At most
a quarter of the free memory is held, until the measurement ends.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from absl import logging

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec
from grappler_pass.costs import attrs_from_node_def as _attrs_of
from grappler_pass.costs.calls import DTYPE_BYTES
from grappler_pass.costs.price_list import Measured, Sample
from grappler_pass.costs.probes import MEASURED_DTYPE, Probe
from grappler_pass.op_lists import OpLists
from tf_amp.op_timing import Chain, TimingGraph, elapsed, timing_graph
from tf_amp.tuning import memory
from tf_amp.tuning.apart import run_apart
from tf_amp.tuning.runnable import check_runnable, op_at
from tf_amp.tuning.synthetic import Inputs, Unfit, inputs_of

LEAST_SECONDS = 1e-7
# A run of a chain takes long against the cost of starting it.
_CHAIN_SECONDS = 4e-4
_LONGEST_CHAIN = 16
# Turns of each dtype: so many and for so long, unless the op is slow.
_TURNS, _TURN_SECONDS, _MOST_TURNS = 7, 0.02, 50
# More of them where the median is less sure than this.
_SETTLED = 0.04
_SLOW_SECONDS, _SLOW_TURNS = 0.25, 2
# Of an op that there was time to run but once, warm-up included.
_SPREAD_OF_ONE = 0.3
# Inputs to lose in the cache: sets of them, together larger than the cache by a half.
_MOST_SETS = 12
_BEYOND_CACHE = 1.5
# An op predicted to take so many times the time there is, is not begun.
_HOPELESS = 2.0
_WAIT_SECONDS = 60.0

_FAILURES = (tf.errors.OpError, TypeError, ValueError, NotImplementedError)


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
            _take_turns(subjects, end)
        except tf.errors.OpError as error:
            logging.vlog(1, "%s is not measured: %s", probe.op, error)
            return ()
    return tuple(
        Measured(probe, subject.dtype, subject.sample()) for subject in subjects
    )


@dataclass
class _Series:
    """Timed runs of one chain."""

    chain: Chain
    runs: list[float] = field(default_factory=list)
    bases: list[float] = field(default_factory=list)

    def turn(self) -> None:
        self.runs.append(elapsed(self.chain.run))
        self.bases.append(elapsed(self.chain.base))

    def seconds(self) -> list[float]:
        """Return seconds of one execution, by run."""
        base = statistics.median(self.bases) if self.bases else 0.0
        return [
            max((run - base) / self.chain.length, LEAST_SECONDS) for run in self.runs
        ]


@dataclass
class _Subject:
    """An op at one dtype, with its runs on warm data, and on cold where that counts."""

    dtype: str
    warm: _Series
    cold: _Series | None = None

    def turn(self) -> None:
        for series in filter(None, (self.warm, self.cold)):
            series.turn()

    def sample(self) -> Sample:
        warm = self.warm.seconds()
        middle = statistics.median(warm)
        cold = statistics.median(self.cold.seconds()) if self.cold else middle
        return Sample(
            seconds=middle,
            cold_seconds=max(cold, middle),
            spread=_spread(warm),
            count=len(warm) * self.warm.chain.length,
            when=time.time(),
        )


def _subject(
    graph: TimingGraph, probe: Probe, dtype: str, device_type: str, seconds: float
) -> _Subject | None:
    """Put an op with its inputs into the graph and warm it up, or say why not."""
    try:
        check_runnable(probe, dtype, device_type)
        inputs = inputs_of(probe, dtype)
        call = _call_at(probe, dtype, inputs)
        predicted = _rough_model(device_type).price(call, dtype).seconds
        _check_affordable(call, predicted, seconds)
        sets = _input_sets(graph, inputs, _sets(probe, call, device_type))
        chains = _chains(graph, probe, dtype, sets, predicted)
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
    probe: Probe,
    dtype: str,
    sets: Sequence[Sequence[Any]],
    predicted: float,
) -> _Chains:
    def call(inputs: Sequence[Any]) -> Any:
        return op_at(probe, dtype, inputs)

    single = graph.chain(call, sets[:1], 1)
    length = int(min(_CHAIN_SECONDS / max(predicted, 1e-9), _LONGEST_CHAIN))
    several = graph.chain(call, sets[:1], length) if length > 1 else single
    cold = graph.chain(call, sets, len(sets)) if len(sets) > 1 else None
    return _Chains(single, several, cold)


def _warmed_up(dtype: str, chains: _Chains, seconds: float) -> _Subject:
    """Run each chain once, untimed: TensorFlow prepares what is run first."""
    first = elapsed(chains.single.run)
    if first > seconds:
        return _Subject(dtype, _Series(chains.single, [first]))
    once = elapsed(chains.single.run)
    is_slow = once * chains.several.length > min(seconds, _SLOW_SECONDS)
    warm = _Series(chains.single if is_slow else chains.several)
    cold = None if chains.cold is None else _Series(chains.cold)
    subject = _Subject(dtype, warm, cold)
    for series in filter(None, (subject.warm, subject.cold)):
        series.chain.run()
        series.chain.base()
    return subject


def _take_turns(subjects: Sequence[_Subject], end: float) -> None:
    """Time the subjects in turn until that is enough or the time is over."""
    # What was too slow to warm up has been timed already.
    waiting = [subject for subject in subjects if not subject.warm.runs]
    begin = time.perf_counter()
    for turn in range(_MOST_TURNS if waiting else 0):
        for subject in waiting:
            subject.turn()
        now = time.perf_counter()
        spent, turns = now - begin, turn + 1
        if _is_enough(waiting, turns, spent) or now + spent / turns > end:
            return


def _is_enough(subjects: Sequence[_Subject], turns: int, spent: float) -> bool:
    if spent >= _SLOW_SECONDS:
        return turns >= _SLOW_TURNS
    if turns < _TURNS or spent < _TURN_SECONDS * len(subjects):
        return False
    spread = max(_spread(subject.warm.seconds()) for subject in subjects)
    return spread < _SETTLED * math.sqrt(turns)


def _spread(seconds: Sequence[float]) -> float:
    """Estimate the standard deviation of the logarithm, heedless of outliers."""
    if len(seconds) < 2:
        return _SPREAD_OF_ONE
    logs = [math.log(each) for each in seconds]
    if len(logs) < 4:
        return statistics.stdev(logs)
    quarters = statistics.quantiles(logs, n=4)
    return (quarters[2] - quarters[0]) / 1.349


def _call_at(probe: Probe, dtype: str, inputs: Inputs) -> OpCall:
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
        op = op_at(probe, dtype, tensors)
        return OpCall(
            probe.op,
            _attrs_of(op.node_def),
            tuple(map(_spec_of, op.inputs)),
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
    sets = []
    for _ in range(count):
        held = graph.hold([inputs.values[p]() for p in free])
        tensors = dict(zip((*fixed, *free), (*constants, *held), strict=True))
        sets.append([tensors[p] for p in range(len(inputs.values))])
    return sets
