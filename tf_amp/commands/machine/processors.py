"""Processors, NUMA nodes and what hangs on them, as the kernel reports them in /sys.

GPUs and the links between them are as `nvidia-smi` reports; what is not clear of it
raises UnclearMachineError, and nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from tf_amp.errors import UnclearMachineError

_SYS = pathlib.Path("/sys")
_NVIDIA = "0x10de"
# VGA-compatible and 3D controllers.
_DISPLAY_CLASSES = ("0x0300", "0x0302")
_TIMEOUT_SECONDS = 20
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|X")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
# From the closest to the farthest, in the words of `nvidia-smi topo`.
MEANINGS = {
    "NV": "NVLink",
    "PIX": "PCIe, one switch",
    "PXB": "PCIe, several switches",
    "PHB": "PCIe, through the host bridge of a CPU",
    "NODE": "PCIe, between host bridges of one NUMA node",
    "SYS": "PCIe and the link between NUMA nodes",
}


@dataclasses.dataclass(frozen=True)
class Node:
    """A NUMA node by its number.

    Cores are those that this process may use, each with its hyperthreads' numbers.
    """

    number: int
    cores: tuple[tuple[int, ...], ...]

    @property
    def cpus(self) -> tuple[int, ...]:
        """Return the CPUs of its cores."""
        return tuple(sorted(cpu for core in self.cores for cpu in core))


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the kernel reports.

    Attributes:
      nodes: those with CPUs that this process may use; empty where there is no word of
        any.
      gpus: NUMA nodes of NVIDIA's by address, such as "0000:3b:00.0"; None where the
        machine does not report it.
      quota: CPUs' worth of time that the control group may use; None for no limit.
    """

    nodes: tuple[Node, ...]
    gpus: Mapping[str, int | None]
    quota: float | None

    @property
    def cores(self) -> int:
        """Return the physical cores that this process may use."""
        return sum(len(node.cores) for node in self.nodes)

    @property
    def cpus(self) -> int:
        """Return the CPUs that this process may use, hyperthreads included."""
        return sum(len(node.cpus) for node in self.nodes)


def machine_of(
    root: pathlib.Path = _SYS, allowed: Iterable[int] | None = None
) -> Machine:
    """Read what a tree such as /sys holds.

    Of the CPUs only those count that this process may use; None asks the kernel.
    """
    # The limit that containers are given, in CPUs.
    granted, _, period = _text(root / "fs/cgroup/cpu.max").partition(" ")
    quota = None
    if granted.isdigit() and period.isdigit() and int(period):
        quota = math.ceil(100 * int(granted) / int(period)) / 100
    usable = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    folders = (root / "devices/system/node").glob("node[0-9]*")
    nodes = [_node(folder, usable, root) for folder in folders]
    return Machine(
        nodes=tuple(sorted((n for n in nodes if n.cores), key=lambda n: n.number)),
        gpus=_gpus(root),
        quota=quota,
    )


def cpu_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as "0-3,8,10-11"; ValueError for others."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def cpu_list(numbers: Iterable[int]) -> str:
    """Return numbers as a list such as "0-3,8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def _node(folder: pathlib.Path, usable: frozenset[int], root: pathlib.Path) -> Node:
    cores = set()
    for cpu in cpu_numbers(_text(folder / "cpulist")):
        if cpu not in usable:
            continue
        topology = root / f"devices/system/cpu/cpu{cpu}/topology"
        siblings = cpu_numbers(_text(topology / "thread_siblings_list")) or (cpu,)
        cores.add(tuple(sorted(usable.intersection(siblings))))
    return Node(int(folder.name.removeprefix("node")), tuple(sorted(cores)))


def _gpus(root: pathlib.Path) -> dict[str, int | None]:
    found = {}
    for folder in sorted((root / "bus/pci/devices").glob("*")):
        kind = _text(folder / "class")
        if _text(folder / "vendor") == _NVIDIA and kind.startswith(_DISPLAY_CLASSES):
            node = _text(folder / "numa_node")
            # -1 where the firmware does not name it.
            found[folder.name.lower()] = int(node) if node.isdigit() else None
    return found


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU as the driver numbers it."""

    number: int
    address: str
    model: str


# Between GPUs: (0, 1) -> "NV12", the lower number first.
Links = Mapping[tuple[int, int], str]


def kind_of(link: str) -> str:
    """Return what of a link `MEANINGS` explains, such as "NV" of "NV12"."""
    return "NV" if link.startswith("NV") else link


def weakest_of(links: Links) -> str:
    """Return the kind of the farthest link, such as "NV" or "PHB"."""
    return max(map(kind_of, links.values()), key=list(MEANINGS).index)


def gpus_from_query(text: str) -> tuple[Gpu, ...]:
    """Parse `nvidia-smi --query-gpu=index,pci.bus_id,name --format=csv,noheader`."""
    gpus = []
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = [field.strip() for field in line.split(",", 2)]
        if len(fields) != 3 or not fields[0].isdigit():
            raise UnclearMachineError(f"nvidia-smi lists no GPU in this line: {line!r}")
        address = fields[1].lower()
        if not _ADDRESS.fullmatch(address):
            raise UnclearMachineError(f"nvidia-smi reports no PCI address: {line!r}")
        # The driver writes domains with eight digits, the kernel with four.
        domain, _, rest = address.partition(":")
        gpus.append(Gpu(int(fields[0]), f"{domain[-4:]}:{rest}", fields[2]))
    return tuple(gpus)


def links_from_topology(text: str) -> Links:
    """Parse `nvidia-smi topo -m`."""
    lines = _ESCAPES.sub("", text).splitlines()
    rows = [[c.strip() for c in line.split("\t") if c.strip()] for line in lines]
    heads = [row for row in rows if row and row[0] == "GPU0" and "X" not in row]
    if not heads:
        raise UnclearMachineError("nvidia-smi topo -m prints no table of GPUs")
    columns = heads[0]
    between: dict[tuple[int, int], str] = {}
    for row in rows[rows.index(columns) + 1 :]:
        first = _number(row[0]) if row else None
        if first is None:
            continue
        for column, link in zip(columns, row[1:], strict=False):
            second = _number(column)
            if second is None or first >= second:
                continue
            if not _LINK.fullmatch(link):
                raise UnclearMachineError(
                    f"nvidia-smi topo -m: {link!r} in {row} is no link"
                )
            between[first, second] = link
    return between


def present_gpus() -> tuple[Gpu, ...]:
    """Ask the driver for the GPUs; none where there is no `nvidia-smi`."""
    query = ("--query-gpu=index,pci.bus_id,name", "--format=csv,noheader")
    return gpus_from_query(_asked(query)) if shutil.which("nvidia-smi") else ()


def present_links() -> Links:
    """Ask the driver for the links between GPUs."""
    return links_from_topology(_asked(("topo", "-m")))


def _asked(arguments: Sequence[str]) -> str:
    command = ("nvidia-smi", *arguments)
    try:
        return subprocess.check_output(
            command, stderr=subprocess.PIPE, text=True, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UnclearMachineError(f"{' '.join(command)}: {error}") from None


def _number(name: str) -> int | None:
    found = re.fullmatch(r"GPU(\d+)", name)
    return int(found[1]) if found else None
