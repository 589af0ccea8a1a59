"""The lines of `tf-amp doctor --devices`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from tf_amp.commands.machine import gpu_links
from tf_amp.commands.machine.advice import advise
from tf_amp.commands.machine.gpu_links import Gpu, Links
from tf_amp.commands.machine.processors import Machine, cpu_list, machine_of
from tf_amp.commands.shared.findings import Finding, Findings, show
from tf_amp.errors import UnclearMachineError


def main() -> int:
    """Print the report; return 0."""
    for finding in examine():
        show(finding)
    return 0


def examine() -> Findings:
    """Yield what the machine tells, and what follows from it."""
    machine = machine_of()
    yield from cores(machine)
    yield from _tensorflow_devices()
    gpus: Sequence[Gpu] = ()
    links = None
    try:
        gpus = gpu_links.present_gpus()
        links = gpu_links.present_links() if len(gpus) > 1 else None
    except UnclearMachineError as error:
        yield Finding("links", f"{error}; nothing is concluded from it")
    yield from conclusions(machine, gpus, links)


def cores(machine: Machine) -> Findings:
    """Yield the CPUs that this process may use."""
    for node in machine.nodes:
        state = f"CPUs {cpu_list(node.cpus)}, {len(node.cores)} cores"
        yield Finding(f"NUMA node {node.number}", state)
    if not machine.nodes:
        yield Finding("NUMA nodes", "the kernel tells of none")
    if machine.quota is not None:
        yield Finding("quota", f"{machine.quota:g} CPUs, from the control group")


def conclusions(machine: Machine, gpus: Sequence[Gpu], links: Links | None) -> Findings:
    """Yield GPUs, links and advice."""
    for gpu in gpus:
        node = machine.gpus.get(gpu.address)
        place = "NUMA node not known" if node is None else f"NUMA node {node}"
        yield Finding(f"GPU{gpu.number}", f"{gpu.model}, {gpu.address}, {place}")
    if machine.gpus and not gpus:
        found = ", ".join(machine.gpus)
        yield Finding("GPU", f"{found} on the bus, but nvidia-smi tells of none")
    yield from _links(links or {})
    yield from advise(machine, gpus, links)
    if len(machine.nodes) > 1 and shutil.which("numactl") is None:
        yield Finding("numactl", "not installed", "apt-get install numactl")
    if gpus:
        yield Finding(
            "numbers",
            "nvidia-smi numbers GPUs by their place on the bus, CUDA by their speed",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )


def _links(links: Links) -> Iterator[Finding]:
    for kind in dict.fromkeys(links.values()):
        pairs = [f"{a}-{b}" for (a, b), link in links.items() if link == kind]
        words = gpu_links.MEANINGS[gpu_links.kind_of(kind)]
        yield Finding(f"link {kind}", f"{words}: GPUs {', '.join(pairs)}")


def _tensorflow_devices() -> Findings:
    """Yield what TensorFlow would train on, if it is there."""
    try:
        import tensorflow as tf

        names = [device.name for device in tf.config.list_physical_devices()]
    except ImportError:
        yield Finding("devices", "TensorFlow is missing")
        return
    short = [name.rpartition("device:")[2] for name in names]
    yield Finding("devices", f"TensorFlow sees {', '.join(short)}")
