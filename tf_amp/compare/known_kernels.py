"""Faults of kernels for the pass: by the table, by earlier checks, by new ones.

How kernels came out on this machine: a file per machine, and what ships with tf-amp.

A file is one JSON object: "machine" says of which, "kernels" has for each kernel, by
its key, what was wrong with it; "" of those that are right.

A check runs one kernel in float32 and in 16 bits, and holds the two against each other.
Integers in -2..2 and ones are exact in 16 bits, and so are their sums of products in
float32: each element may be off by one rounding of the result. Memory is filled with
NaN before, since some kernels leave parts of their result as they find it. What is
inexact on any data may have no slice along an axis with an error above a tenth of the
whole. Nothing is timed.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.costs import DeviceProfile
from grappler_pass.eligibility.fused_ops import cast_node, split_fused
from grappler_pass.eligibility.kernels import Kernel, is_exact
from grappler_pass.eligibility.known_wrong import Machine, row_for
from grappler_pass.fork_safety import per_process, renewed_lock
from grappler_pass.graph.shapes import proto_from_shape, static
from grappler_pass.graph.type_slots import ABSENT_GPU, FLOAT32, TypeSlot
from grappler_pass.rewriting.apply import retype
from tf_amp import _tensorflow_private as private
from tf_amp.compare.kept_file import Fields, KeptFile, fields_from, is_line, mapping_in
from tf_amp.config import devices
from tf_amp.config.amp_config import CHECK, AmpConfig
from tf_amp.report.counts import counted
from tf_amp.run.graph_run import (
    GraphRun,
    StuckError,
    most_bytes,
    own_config,
    run_in_own_thread,
)

# Of one graph.
_LIMIT_SECONDS = {"CPU": 3.0, "GPU": 5.0}
# A check that takes so much longer than it may is given up.
_PATIENCE_SECONDS = 60.0
_LONGEST_SECONDS = 3600.0
_lock = renewed_lock()
_SHIPPED = pathlib.Path(__file__).parent / "shipped"
_PART = "kernels"


@dataclasses.dataclass(frozen=True)
class KnownKernels:
    """Knowledge of kernels; of the pass's `Kernels`.

    Attributes:
      machines: by type of device.
      outcomes: of earlier checks, by type of device; none of a device planned for.
      is_off: whether checks are switched off.
      limits: seconds that the checks of one graph may take, by type of device; None:
        no kernel is run.
    """

    machines: Mapping[str, Machine]
    outcomes: Mapping[str, Outcomes] = dataclasses.field(default_factory=dict)
    is_off: bool = False
    limits: Mapping[str, float] | None = None

    def fault(self, kernel: Kernel, *, compiled: bool) -> str:
        """Return why a kernel may not be used; "" where nothing is known against it."""
        machine = self.machines.get(kernel.device_type)
        row = row_for(kernel, machine, compiled=compiled) if machine else None
        if row is not None:
            return f"{row.name}, {row.where}: {row.wrong}"
        known = self.outcomes.get(kernel.device_type)
        return "" if compiled or known is None else known.fault(kernel.key)

    def unchecked(self, kernels: Sequence[Kernel]) -> str:
        """Say how many kernels were not checked; "" where all were, or none can be."""
        missing = list(self._missing(kernels))
        if not missing:
            return ""
        why = f" ({CHECK}=off)" if self.is_off else ""
        return f"{counted(len(missing), 'kernel')} not checked{why}"

    def _missing(self, kernels: Sequence[Kernel]) -> Iterator[Kernel]:
        """Yield the kernels of this machine that have not been checked."""
        for kernel in kernels:
            known = self.outcomes.get(kernel.device_type)
            if known is not None and kernel.key not in known:
                yield kernel

    def check(self, kernels: Sequence[Kernel]) -> bool:
        """Run kernels that were not checked, the small ones first.

        Returns:
          Whether any of them is wrong.
        """
        missing = [kernel for kernel in self._missing(kernels) if kernel.is_whole]
        if self.limits is None or not missing:
            return False
        ordered = sorted(missing, key=bytes_of)
        seconds = max(self.limits[kernel.device_type] for kernel in ordered)
        run = functools.partial(self._run, ordered, time.monotonic() + seconds)
        with _lock:
            try:
                patience = min(seconds, _LONGEST_SECONDS) + _PATIENCE_SECONDS
                return run_in_own_thread(run, patience)
            except StuckError as error:
                logging.warning("kernels are used unchecked: %s", error)
                return False

    def _run(
        self, kernels: Sequence[Kernel], end: float, stops: Callable[[], bool]
    ) -> bool:
        found: dict[str, dict[str, str]] = {}
        for kernel in kernels:
            if stops() or time.monotonic() > end:
                break
            if bytes_of(kernel) > most_bytes(kernel.device_type):
                continue
            try:
                fault = fault_in(kernel)
            except (tf.errors.OpError, ValueError) as error:
                logging.info("%s was not checked: %s", kernel.op, error)
                continue
            found.setdefault(kernel.device_type, {})[kernel.key] = fault
        for device_type, faults in found.items():
            self.outcomes[device_type].add(faults)
        return any(any(faults.values()) for faults in found.values())


def kernels_of_profile(profile: DeviceProfile) -> KnownKernels:
    """Return the known kernels of a device that need not be present."""
    machine = Machine(profile.kind.upper(), profile.flags, profile.threads)
    return KnownKernels(dict.fromkeys(("CPU", "GPU", ABSENT_GPU), machine))


def kernels_here(config: AmpConfig) -> KnownKernels:
    """Return the known kernels of the devices that are present."""
    present = {device.device_type: device for device in devices.present_devices()}
    machines = dict(zip(present, map(Machine, present), strict=True))
    key = devices.cpu_key()
    major, minor = map(int, tf.version.VERSION.split(".")[:2])
    machines["CPU"] = Machine("CPU", key.flags, key.threads, key.onednn, (major, minor))
    build = f"TensorFlow {tf.version.VERSION} {tf.version.GIT_VERSION}"
    outcomes = {}
    for kind, device in present.items():
        # All that decides which kernels run there: of a CPU the instruction sets, not
        # who has made them.
        is_cpu = kind == "CPU"
        place = str(key._replace(model="CPU") if is_cpu else devices.key_of(device))
        facts = filter(None, (place, build, devices.kernel_variables()))
        outcomes[kind] = outcomes_of(", ".join(facts), config.cache_dir)
    return KnownKernels(machines, outcomes, is_off=not config.check)


def with_checks(known: KnownKernels, config: AmpConfig) -> KnownKernels:
    """Return kernels that are run before their first use, unless that is off."""
    if known.is_off or not known.outcomes:
        return known
    has_time = config.tune == "off" or private.is_determinism_enabled()
    limits = dict.fromkeys(_LIMIT_SECONDS, math.inf) if has_time else _LIMIT_SECONDS
    return dataclasses.replace(known, limits=limits)


class Outcomes:
    """Outcomes of the kernels of one machine; several threads may use it."""

    def __init__(self, machine: str, path: pathlib.Path | None) -> None:
        """Read what ships with tf-amp, and what a file has; None: nothing is kept."""
        self.machine = machine
        self._file = KeptFile(path, _PART)
        kept = _kernels_in(self._file.read(), machine)
        self._known: dict[str, str] = {**shipped(machine), **kept}

    def __contains__(self, key: str) -> bool:
        """Return whether a kernel was checked."""
        return key in self._known

    def fault(self, key: str) -> str:
        """Return the fault of a kernel; "" if it is right, or not known."""
        return self._known.get(key, "")

    @property
    def wrong(self) -> Mapping[str, str]:
        """Faults of kernels, by key."""
        # A copy first: other threads may add to it.
        return {key: fault for key, fault in dict(self._known).items() if fault}

    def add(self, found: Mapping[str, str]) -> None:
        """Remember how kernels came out, in the file, too, with what others found."""
        self._known.update(found)

        def change(fields: Fields) -> None:
            kernels = {**_kernels_in(fields, self.machine), **found}
            fields["machine"] = self.machine
            fields[_PART] = dict(sorted(kernels.items()))

        self._file.change(change)


def shipped(machine: str) -> dict[str, str]:
    """Return the outcomes of a machine that ship with tf-amp."""
    files = (
        fields_from(path.read_text(encoding="utf-8"), _PART)
        for path in sorted(_SHIPPED.glob("*.json"))
    )
    return next(filter(None, (_kernels_in(each, machine) for each in files)), {})


def _kernels_in(fields: Fields, machine: str) -> dict[str, str]:
    """Return the outcomes that make sense; none where they are of another machine."""
    if fields.get("machine") != machine:
        return {}
    kernels = mapping_in(fields, _PART).items()
    return {key: fault for key, fault in kernels if is_line(key) and is_line(fault)}


@functools.cache
def outcomes_of(machine: str, cache_dir: pathlib.Path | None) -> Outcomes:
    """Return the outcomes that this process has of a machine."""
    digest = hashlib.sha256(machine.encode()).hexdigest()[:16]
    # In the user's cache folder.
    path = None if cache_dir is None else cache_dir / "kernels" / f"{digest}.json"
    return Outcomes(machine, path)


# What a parent has found since is in the file.
per_process(outcomes_of.cache_clear)


_FLOAT32, _LOW = "float32", "low"
Array = npt.NDArray[np.float32]
Wrong = npt.NDArray[np.bool_]

# Half the distance of neighboring numbers, as a share, and what is finite at most.
_ROUNDING = {types_pb2.DT_BFLOAT16: 2.0**-8, types_pb2.DT_HALF: 2.0**-11}
_LARGEST = {types_pb2.DT_BFLOAT16: 3.3e38, types_pb2.DT_HALF: 65504.0}
_SLACK = 1.01
# Of the square of the whole result's, the mean square error of a slice.
_MOST_ERROR = 0.01
# A prime, so that no axis has the same numbers all along.
_PATTERN = 65521
# What a kernel works with has other sizes than its result.
_DIRTY_BYTES = tuple(1 << power for power in range(9, 21))


def bytes_of(kernel: Kernel) -> int:
    """Return the memory of running it, roughly: operands, results, the rest."""
    shapes = (*(each.shape for each in kernel.operands), *kernel.results)
    return sum(16 * math.prod(size or 1 for size in shape or ()) for shape in shapes)


def fault_in(kernel: Kernel) -> str:
    """Return the fault of a kernel all of whose sizes are known; "" if none.

    Raises:
      tf.errors.OpError: it cannot be run in float32 or in 16 bits.
      ValueError: TensorFlow cannot import it.
    """
    is_wrong = _beyond_rounding if is_exact(kernel) else _bad_slices
    for float32, low in _results(kernel):
        with np.errstate(all="ignore"):
            wrong, off = is_wrong(kernel, float32, low), low - float32
            share = np.linalg.norm(off) / np.linalg.norm(float32)
        if wrong.any():
            return f"{wrong.sum()} of {wrong.size} off, by {share:.2g} of the norm"
    return ""


def _results(kernel: Kernel) -> Iterator[tuple[Array, Array]]:
    """Yield what a kernel makes of integers, then of ones, in float32 and 16 bits."""
    fed = [str(i) for i, each in enumerate(kernel.operands) if each.values is None]
    shapes = [static(kernel.operands[int(name)].shape) or () for name in fed]
    device = f"/device:{kernel.device_type}:0"
    # The program's own configuration, Grappler on for the smallest graphs.
    config = own_config()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    config.allow_soft_placement = False
    sizes = [math.prod(size or 1 for size in shape or ()) for shape in kernel.results]
    with GraphRun({"": _both(kernel)}, config=config) as run:
        float32, low = run.tensor(_FLOAT32), run.tensor(_LOW)
        with run.graph.as_default(), run.graph.device(device):
            result = tf.cast(low, tf.float32)
            dirt = tf.compat.v1.placeholder(low.dtype, [])
            count = tf.compat.v1.placeholder(tf.int32, [1])
            dirtied = tf.reduce_max(tf.fill(count, dirt))
        compute = run.callable([float32, result], [run.tensor(name) for name in fed])
        dirty = run.callable(dirtied, [count, dirt])
        for values in (_INTEGERS, _ONES):
            arrays = [np.resize(values, shape) for shape in shapes]
            for size in (*sizes, *(bytes_ // 2 for bytes_ in _DIRTY_BYTES)):
                dirty([size], math.nan)
            float32_result, low_result = compute(*arrays)
            yield float32_result, low_result


_INTEGERS = np.random.default_rng(0).integers(-2, 3, _PATTERN).astype(np.float32)
_ONES = np.ones(_PATTERN, np.float32)


def _both(kernel: Kernel) -> GraphDef:
    """Return a graph that computes a kernel in float32 and as the pass makes it."""
    graph_def = GraphDef()
    # Without it a scalar would count as a shape that is not known, and a kernel that
    # refuses one would end the process.
    graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
    device = f"/device:{kernel.device_type}:0"
    for position, operand in enumerate(kernel.operands):
        source = graph_def.node.add(name=str(position))
        source.attr["dtype"].type = operand.dtype
        if operand.values is None:
            source.op = "Placeholder"
            source.attr["shape"].shape.CopyFrom(proto_from_shape(operand.shape))
        else:
            source.op = "Const"
            values = np.array(operand.values, np.int32)
            source.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))
    float32 = NodeDef()
    float32.CopyFrom(kernel.proto)
    float32.name, float32.device = _FLOAT32, device
    low = NodeDef()
    low.CopyFrom(float32)
    low.name = _LOW
    for position, operand in enumerate(kernel.operands):
        if operand.is_low:
            types = (FLOAT32, kernel.low_dtype)
            cast = cast_node(f"{_LOW}_{position}", str(position), types, float32)
            low.input[position] = cast.name
            graph_def.node.append(cast)
    retype(low, [TypeSlot(_LOW, *slot) for slot in kernel.low_slots], kernel.low_dtype)
    graph_def.node.append(float32)
    operands = kernel.operands
    graph_def.node.extend(
        split_fused(
            low,
            kernel.low_dtype,
            lambda name: name,
            device_type=kernel.device_type,
            has_flat_bias=len(operands) > 2 and len(operands[2].shape or ()) == 1,
            product_alone=kernel.product_alone,
        )
    )
    return graph_def


def _beyond_rounding(
    kernel: Kernel, float32: Array, low: Array
) -> npt.NDArray[np.bool_]:
    """Tell of each element whether it is off by more than roundings."""
    attrs = kernel.proto.attr
    fused = attrs["fused_ops"].list.s if "fused_ops" in attrs else ()
    roundings = 1 if kernel.product_alone else 1 + len(fused)
    share = _SLACK * roundings * _ROUNDING[kernel.low_dtype]
    largest = _LARGEST[kernel.low_dtype]
    size = np.abs(float32)
    # What is too large for the type is infinite in it.
    overflows = (np.abs(low) > largest) & (size * (1 + share) >= largest)
    wrong: Wrong = ~(np.abs(low - float32) <= share * size) & ~overflows
    return wrong


def _bad_slices(kernel: Kernel, float32: Array, low: Array) -> Wrong:
    """Tell of each slice along any axis whether it is off by too much."""
    square = np.square(low - float32)
    most = _MOST_ERROR * np.square(float32).mean()
    axes = range(square.ndim)
    means = (square.mean(tuple(a for a in axes if a != axis)) for axis in axes)
    return np.array([not mean <= most for each in means for mean in each], bool)
