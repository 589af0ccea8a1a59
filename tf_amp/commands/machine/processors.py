"""Processors, NUMA nodes and what hangs on them, as the kernel tells in /sys."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Mapping

_SYS = pathlib.Path("/sys")
_NVIDIA = "0x10de"
# VGA-compatible and 3D controllers.
_DISPLAY_CLASSES = ("0x0300", "0x0302")


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
    """What the kernel tells.

    Attributes:
      nodes: those with CPUs that this process may use; empty where there is no word of
        any.
      gpus: NUMA nodes of NVIDIA's by address, such as "0000:3b:00.0"; None where the
        machine does not tell.
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
    """Read what a tree such as /sys tells.

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
