"""Samples, written by hand in the form that tools and the kernel use; none recorded."""

from __future__ import annotations

import pathlib

# Four GPUs on two sockets, linked by PCIe.
PCIE_TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPIX\tSYS\tSYS\t0-3,8-11\t0
GPU1\tPIX\t X \tSYS\tSYS\t0-3,8-11\t0
GPU2\tSYS\tSYS\t X \tPHB\t4-7,12-15\t1
GPU3\tSYS\tSYS\tPHB\t X \t4-7,12-15\t1

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PIX  = Connection traversing at most a single PCIe bridge
"""

# Two GPUs with NVLink and a network card, underlined as newer drivers do.
NVLINK_TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tPXB\t0-7\t0\t\tN/A
GPU1\tNV12\t X \tSYS\t8-15\t1\t\tN/A
NIC0\tPXB\tSYS\t X \t\t\t\t

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
"""

QUERY = """\
0, 00000000:3B:00.0, Tesla V100-PCIE-32GB
1, 00000000:3C:00.0, Tesla V100-PCIE-32GB
2, 00000000:AF:00.0, Tesla V100-PCIE-32GB
3, 00000000:D8:00.0, Tesla V100-PCIE-32GB
"""

# Address, vendor, class and NUMA node as the kernel has them.
GPUS = (
    ("0000:3b:00.0", "0x10de", "0x030200", "0"),
    ("0000:3c:00.0", "0x10de", "0x030200", "0"),
    ("0000:af:00.0", "0x10de", "0x030200", "1"),
    ("0000:d8:00.0", "0x10de", "0x030000", "1"),
)
OTHERS = (
    ("0000:00:1f.0", "0x8086", "0x060100", "0"),
    # The audio half of a graphics card.
    ("0000:3b:00.1", "0x10de", "0x040300", "0"),
)
# Two sockets of four cores with two hyperthreads each, as Linux numbers them.
NODES = ("0-3,8-11", "4-7,12-15")


def write_tree(
    root: pathlib.Path,
    *,
    nodes: tuple[str, ...] = NODES,
    threads: int = 2,
    devices: tuple[tuple[str, str, str, str], ...] = (*GPUS, *OTHERS),
    quota: str = "max 100000",
) -> pathlib.Path:
    """Write a tree such as /sys for 16 CPUs; return its root."""
    for number, cpus in enumerate(nodes):
        _write(root / f"devices/system/node/node{number}/cpulist", cpus)
    for cpu in range(16):
        siblings = f"{cpu % 8},{cpu % 8 + 8}" if threads == 2 else str(cpu)
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        _write(folder / "thread_siblings_list", siblings)
    for address, vendor, kind, node in devices:
        folder = root / "bus/pci/devices" / address
        _write(folder / "vendor", vendor)
        _write(folder / "class", kind)
        _write(folder / "numa_node", node)
    _write(root / "fs/cgroup/cpu.max", quota)
    return root


def _write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
