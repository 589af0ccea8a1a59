"""Faults of kernels for the pass: by the table, by earlier checks, by new ones.

How kernels came out on this machine: a file per machine, and what ships with tf-amp.

A file is one JSON object: "machine" says of which, "kernels" has for each kernel, by
its key, what was wrong with it; "" of those that are right.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf
from absl import logging

from grappler_pass.costs import DeviceProfile
from grappler_pass.eligibility.kernels import Kernel
from grappler_pass.eligibility.known_wrong import Machine, row_for
from grappler_pass.fork_safety import per_process, renewed_lock
from grappler_pass.graph.type_slots import ABSENT_GPU
from tf_amp import _tensorflow_private as private
from tf_amp.checking import running
from tf_amp.compare.kept_file import Fields, KeptFile, fields_from, is_line, mapping_in
from tf_amp.config import devices
from tf_amp.config.amp_config import CHECK, AmpConfig
from tf_amp.report.counts import counted
from tf_amp.run.graph_run import StuckError, most_bytes, run_in_own_thread

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
    """Knowledge of kernels without running any; of the pass's `Kernels`.

    Attributes:
      machines: by type of device.
      outcomes: of earlier checks, by type of device; none of a device planned for.
      is_off: whether checks are switched off.
    """

    machines: Mapping[str, Machine]
    outcomes: Mapping[str, Outcomes] = dataclasses.field(default_factory=dict)
    is_off: bool = False

    def fault(self, kernel: Kernel, *, compiled: bool) -> str:
        """Return why a kernel may not be used; "" where nothing is known against it."""
        machine = self.machines.get(kernel.device_type)
        row = row_for(kernel, machine, compiled=compiled) if machine else None
        if row is not None:
            return f"{row.name}, {row.where}: {row.wrong}"
        known = self.outcomes.get(kernel.device_type)
        return "" if compiled or known is None else known.fault(kernel.key)

    def check(self, kernels: Sequence[Kernel]) -> bool:
        """Run nothing."""
        return False

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


@dataclasses.dataclass(frozen=True)
class CheckedKernels(KnownKernels):
    """Kernels that are run before a plan first uses them.

    Attributes:
      is_limited: whether the checks of one graph have a limit of time.
    """

    is_limited: bool = True

    def check(self, kernels: Sequence[Kernel]) -> bool:
        """Run kernels that were not checked, the small ones first.

        Returns:
          Whether any of them is wrong.
        """
        missing = [kernel for kernel in self._missing(kernels) if kernel.is_whole]
        if not missing:
            return False
        limits = (_LIMIT_SECONDS.get(each.device_type, 0.0) for each in missing)
        seconds = max(limits) if self.is_limited else math.inf
        ordered = sorted(missing, key=running.bytes_of)
        patience = min(seconds, _LONGEST_SECONDS) + _PATIENCE_SECONDS

        def work(stops: Callable[[], bool]) -> bool:
            return self._run(ordered, time.monotonic() + seconds, stops)

        with _lock:
            try:
                return run_in_own_thread(work, patience)
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
            if running.bytes_of(kernel) > most_bytes(kernel.device_type):
                continue
            try:
                fault = running.fault_in(kernel)
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
    version = (major, minor)
    machines["CPU"] = Machine("CPU", key.flags, key.threads, key.onednn, version)
    return KnownKernels(
        machines=machines,
        outcomes={
            kind: outcomes_of(_machine_text(device), config.cache_dir)
            for kind, device in present.items()
        },
        is_off=not config.check,
    )


def with_checks(known: KnownKernels, config: AmpConfig) -> KnownKernels:
    """Return kernels that are run before their first use, unless that is off."""
    if known.is_off or not known.outcomes:
        return known
    is_limited = config.tune != "off" and not private.is_determinism_enabled()
    return CheckedKernels(known.machines, known.outcomes, is_limited=is_limited)


def _machine_text(device: devices.Device) -> str:
    """Return all that decides which kernels run on a device, for its file."""
    if device.device_type == "CPU":
        # The instruction sets decide, not who has made them.
        place = str(devices.cpu_key()._replace(model="CPU"))
    else:
        place = devices.cost_key(device)
    build = f"TensorFlow {tf.version.VERSION} {tf.version.GIT_VERSION}"
    return ", ".join(filter(None, (place, build, devices.kernel_variables())))


class Outcomes:
    """Outcomes of the kernels of one machine; several threads may use it."""

    def __init__(self, machine: str, path: pathlib.Path | None) -> None:
        """Read what ships with tf-amp, and what a file has; None: nothing is kept."""
        self.machine = machine
        self._file = KeptFile(path, _PART)
        kept = _kernels_in(self._file.read(), machine)
        self._known: dict[str, str] = {**shipped(machine), **kept}
        self._wrong = {key: fault for key, fault in self._known.items() if fault}

    def __contains__(self, key: str) -> bool:
        """Return whether a kernel was checked."""
        return key in self._known

    def fault(self, key: str) -> str:
        """Return the fault of a kernel; "" if it is right, or not known."""
        return self._wrong.get(key, "")

    @property
    def wrong(self) -> Mapping[str, str]:
        """Faults of kernels, by key."""
        return dict(self._wrong)

    def add(self, found: Mapping[str, str]) -> None:
        """Remember how kernels came out, in the file, too, with what others found."""
        self._known.update(found)
        self._wrong.update({key: fault for key, fault in found.items() if fault})

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
