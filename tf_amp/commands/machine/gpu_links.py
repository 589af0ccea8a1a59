"""GPUs and the links between them, as `nvidia-smi` tells.

What is not understood of it raises UnclearMachineError, and nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from tf_amp.errors import UnclearMachineError

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
class Gpu:
    """A GPU as the driver numbers it."""

    number: int
    address: str
    model: str


# Between GPUs: (0, 1) -> "NV12", the lower number first.
Links = Mapping[tuple[int, int], str]


def kind_of(link: str) -> str:
    """Return what of a link `MEANINGS` tells, such as "NV" of "NV12"."""
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
            raise UnclearMachineError(f"nvidia-smi tells no PCI address: {line!r}")
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
