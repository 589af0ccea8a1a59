"""The lines of `tf-amp doctor --devices`: the machine, what follows, what to copy."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence

from tf_amp.commands.machine import processors
from tf_amp.commands.machine.processors import Gpu, Links, Machine, Node
from tf_amp.commands.shared.findings import Finding, Findings
from tf_amp.errors import UnclearMachineError

_THREADS = "export TF_NUM_INTRAOP_THREADS={0} TF_NUM_INTEROP_THREADS={0}"
_STRATEGY = 'keras_callbacks.mirrored_strategy(all_reduce="{}")'


def examine() -> Findings:
    """Yield what the machine reports, and what follows from it."""
    machine = processors.machine_of()
    yield from cores(machine)
    yield from _tensorflow_devices()
    gpus: Sequence[Gpu] = ()
    links = None
    try:
        gpus = processors.present_gpus()
        links = processors.present_links() if len(gpus) > 1 else None
    except UnclearMachineError as error:
        yield Finding("links", f"{error}; nothing is concluded from it")
    yield from conclusions(machine, gpus, links)


def cores(machine: Machine) -> Findings:
    """Yield the CPUs that this process may use."""
    for node in machine.nodes:
        state = f"CPUs {processors.cpu_list(node.cpus)}, {len(node.cores)} cores"
        yield Finding(f"NUMA node {node.number}", state)
    if not machine.nodes:
        yield Finding("NUMA nodes", "the kernel reports none")
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
        yield Finding("GPU", f"{found} on the bus, but nvidia-smi reports none")
    for kind in dict.fromkeys((links or {}).values()):
        pairs = [f"{a}-{b}" for (a, b), link in (links or {}).items() if link == kind]
        words = processors.MEANINGS[processors.kind_of(kind)]
        yield Finding(f"link {kind}", f"{words}: GPUs {', '.join(pairs)}")
    yield from advise(machine, gpus, links)
    if len(machine.nodes) > 1 and shutil.which("numactl") is None:
        yield Finding("numactl", "not installed", "apt-get install numactl")
    if gpus:
        yield Finding(
            "numbers",
            "nvidia-smi numbers GPUs by their place on the bus, CUDA by their speed",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )


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


@dataclasses.dataclass(frozen=True)
class Worker:
    """A process that trains on one GPU, or on the CPUs of one NUMA node.

    Of the whole node some cores are its own.
    """

    name: str
    whole: Node
    own: Node


def advise(machine: Machine, gpus: Sequence[Gpu], links: Links | None) -> list[Finding]:
    """Return what follows; links are None where nobody reports them."""
    workers = workers_of(machine, gpus)
    return [
        *_binding(machine, gpus, workers),
        *_threads(machine, workers),
        _all_reduce(gpus, links),
    ]


def workers_of(machine: Machine, gpus: Sequence[Gpu]) -> tuple[Worker, ...]:
    """Share the cores of each node among the workers that belong to it.

    A GPU whose node is not known, or has no cores for this process, gets no worker.
    """
    if not gpus:
        return tuple(Worker(f"node {n.number}", n, n) for n in machine.nodes)
    workers: list[Worker] = []
    for node in machine.nodes:
        here = [gpu for gpu in gpus if machine.gpus.get(gpu.address) == node.number]
        share = len(node.cores) // max(len(here), 1)
        for place, gpu in enumerate(here):
            cores = node.cores[place * share : (place + 1) * share] or node.cores
            own = dataclasses.replace(node, cores=cores)
            workers.append(Worker(f"GPU{gpu.number}", node, own))
    return tuple(sorted(workers, key=lambda worker: worker.name))


def _binding(
    machine: Machine, gpus: Sequence[Gpu], workers: Sequence[Worker]
) -> Iterator[Finding]:
    if len(machine.nodes) < 2:
        found = "one NUMA node" if machine.nodes else "the kernel reports no NUMA node"
        yield Finding("binding", f"{found}: there is nothing to bind a worker to")
        return
    for worker in workers:
        node, own = worker.whole, worker.own
        others = sum(other.whole == node for other in workers)
        share = f", {len(own.cores)} of its {len(node.cores)} cores"
        place = ": it hangs on node" if gpus else " on NUMA node"
        because = f"for a worker of its own{place} {node.number}"
        cpus = processors.cpu_list(own.cpus)
        binding = f"numactl --physcpubind={cpus} --membind={node.number}"
        command = f"{binding} python train.py"
        yield Finding(worker.name, because + (share if others > 1 else ""), command)
    bound = {worker.name for worker in workers}
    for gpu in gpus:
        if f"GPU{gpu.number}" not in bound:
            because = f"no word of a NUMA node with free CPUs for {gpu.address}"
            yield Finding(f"GPU{gpu.number}", f"{because}: no advice")


def _threads(machine: Machine, workers: Sequence[Worker]) -> Iterator[Finding]:
    """Advise on threads: one for each core, where TensorFlow would take more."""
    quota = machine.quota
    if quota is not None and quota < machine.cpus:
        count = max(1, int(quota))
        yield Finding(
            "threads",
            f"the control group grants {quota:g} of the {machine.cpus} CPUs for which "
            "TensorFlow starts threads",
            _THREADS.format(count),
        )
        return
    if len(machine.nodes) < 2:
        yield _threads_of("a worker", machine.cores, machine.cpus)
        return
    sizes = {(len(each.own.cores), len(each.own.cpus)) for each in workers}
    for cores, cpus in sorted(sizes):
        yield _threads_of("each worker, bound as above,", cores, cpus)


def _threads_of(who: str, cores: int, cpus: int) -> Finding:
    if cores == 0:
        return Finding("threads", "the kernel reports no cores: no advice")
    if cores == cpus:
        because = f"{who} has {cores} cores of one CPU each"
        return Finding("threads", f"{because}: TensorFlow's own choice, one per CPU")
    because = f"{who} has {cores} cores of {cpus / cores:g} hyperthreads"
    return Finding(
        "threads",
        f"{because}: TensorFlow would start one thread for each of {cpus} CPUs",
        _THREADS.format(cores),
    )


def _all_reduce(gpus: Sequence[Gpu], links: Links | None) -> Finding:
    what = "all-reduce"
    if not gpus:
        because = "no GPU; logical devices of a CPU copy within one memory, where 16 "
        because += "bits add casts and save no link"
        return Finding(what, because, _STRATEGY.format("float32"))
    if len(gpus) == 1:
        return Finding(what, "one GPU: there is nothing to reduce on this machine")
    if not links:
        return Finding(what, "nvidia-smi reports no links between GPUs: no advice")
    weakest = processors.weakest_of(links)
    because = f"the weakest of {len(links)} links is {processors.MEANINGS[weakest]}"
    if weakest == "NV":
        because += ", for which TensorFlow's own exchange, by NCCL, is made"
        return Finding(what, because, _STRATEGY.format("float32"))
    because += f" ({weakest}), shared by all gradients: half the bytes; compare step "
    because += "times with float32, since no rate is known"
    return Finding(what, because, _STRATEGY.format("bfloat16"))
