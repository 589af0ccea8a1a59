"""Which CPUs and GPUs of this machine share a NUMA node, and which GPUs a link.

As the kernel and `nvidia-smi` report it: what they do not is left out.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
from collections.abc import Iterable, Mapping

_NODES = pathlib.Path("/sys/devices/system/node")
_TIMEOUT_SECONDS = 20
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_AFFINITY = "NUMA Affinity"


def described(nodes: Mapping[str, str], topology: str) -> str:
    """Say it in a line, with the command that binds a process where it matters.

    Args:
      nodes: lists of CPUs, such as "0-3,8-11", by the nodes' numbers.
      topology: what `nvidia-smi topo -m` prints; empty where there is none.
    """
    gpus = _gpus_of(topology)
    said = []
    for node, cpus in nodes.items():
        here = [name for name, row in gpus.items() if row.get(_AFFINITY) == node]
        said.append(", ".join([f"NUMA node {node}: CPUs {cpus}", *here]))
    pairs: dict[str, list[str]] = {}
    for first, row in gpus.items():
        for second in list(gpus)[list(gpus).index(first) + 1 :]:
            pairs.setdefault(row.get(second, "?"), []).append(f"{first}-{second}")
    said += [f"link {kind}: {', '.join(linked)}" for kind, linked in pairs.items()]
    if len(nodes) > 1:
        one = next(iter(nodes))
        bound = f"numactl --cpunodebind={one} --membind={one} python train.py"
        said.append(f"on node {one} alone: {bound}")
    return "; ".join(said) or "the kernel reports no NUMA node"


def nodes_here(
    root: pathlib.Path = _NODES, allowed: Iterable[int] | None = None
) -> dict[str, str]:
    """Read the nodes with CPUs that this process may use; None asks the kernel."""
    usable = set(os.sched_getaffinity(0) if allowed is None else allowed)
    folders = {path.parent.name[4:]: path for path in root.glob("node[0-9]*/cpulist")}
    lists = {
        node: folders[node].read_text().strip() for node in sorted(folders, key=int)
    }
    return {node: cpus for node, cpus in lists.items() if usable & _numbers(cpus)}


def topology_here() -> str:
    """Ask the driver how GPUs are linked; empty where it does not say."""
    command = ("nvidia-smi", "topo", "-m")
    try:
        return subprocess.check_output(
            command, stderr=subprocess.DEVNULL, text=True, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return ""


def _numbers(cpus: str) -> set[int]:
    parts = [part.partition("-") for part in cpus.split(",") if part]
    return {n for a, _, b in parts for n in range(int(a), int(b or a) + 1)}


def _gpus_of(topology: str) -> dict[str, dict[str, str]]:
    """Return the rows of GPUs, by name, each by its columns' heads."""
    lines = _ESCAPES.sub("", topology).splitlines()
    rows = [[cell.strip() for cell in line.split("\t")] for line in lines]
    heads = next((row for row in rows if row[1:2] == ["GPU0"]), [])
    named = [row for row in rows if re.fullmatch(r"GPU\d+", row[0])]
    return {row[0]: dict(zip(heads, row, strict=False)) for row in named if heads}
