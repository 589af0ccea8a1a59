"""The doctor's checks that need TensorFlow, and what steps have taught about prices.

The last check rewrites a small function for real. Which CPUs and GPUs share a NUMA
node, and which GPUs a link, is what the kernel and `nvidia-smi` report.
"""

from __future__ import annotations

import itertools
import math
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import rich
from rich.markup import escape

from grappler_pass.costs.model import Lesson
from tf_amp import _tensorflow_private as private
from tf_amp.commands._shared import show_json
from tf_amp.commands.doctor import REINSTALL, Finding
from tf_amp.compare.verdicts import fields_of, lessons_in, memory_path
from tf_amp.config import devices
from tf_amp.config.amp_config import CACHE, AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.report.display import FittedTable
from tf_amp.runtime import enabling, switch
from tf_amp.tools.bench.record import versions_of

Findings = Iterator[Finding]

_NVIDIA_DRIVER = pathlib.Path("/proc/driver/nvidia/version")
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "keras", "tf_keras")
_NODES = pathlib.Path("/sys/devices/system/node")
_TIMEOUT_SECONDS = 20
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_AFFINITY = "NUMA Affinity"
_COLUMNS = ("op and size", "type", "profile", "measured / predicted", "readings")


def versions() -> Finding:
    """List the versions of what computes."""
    pairs = (("Python", platform.python_version()), *versions_of(_DISTRIBUTIONS))
    return Finding("versions", ", ".join(map(" ".join, pairs)))


def onednn(config: AmpConfig) -> Findings:
    """Say whether TensorFlow uses oneDNN, without which a CPU gains nothing."""
    words = {
        True: "on",
        False: "off: 16 bits are emulated on this CPU, so nothing will be converted",
        None: "unknown",
    }
    yield Finding("oneDNN", words[private.is_onednn_enabled()])


def found_devices(config: AmpConfig) -> Findings:
    """List devices with the 16-bit type they compute in, and their profile."""
    for device in devices.present_devices():
        profile = devices.profile_of(config, device)
        model = device.model or device.name
        if device.capability:
            model += " (compute capability {}.{})".format(*device.capability)
        state = f"{model}: {device.low_dtype}, profile {profile.name}"
        yield Finding(device.device_type, state)
    if _NVIDIA_DRIVER.exists() and len(devices.present_devices()) == 1:
        state = "an NVIDIA driver is here, but TensorFlow sees no GPU"
        yield Finding("GPU", state, "pip install 'tensorflow[and-cuda]'")


def machine(config: AmpConfig) -> Findings:
    """Say which CPUs and GPUs share a NUMA node, which GPUs a link, and how to bind."""
    yield Finding("machine", described(nodes_here(), topology_here()))


def wrong_kernels(config: AmpConfig) -> Findings:
    """List the 16-bit kernels that are known to be wrong here, or were found so."""
    from grappler_pass.eligibility import known_wrong
    from grappler_pass.eligibility.kernels import described
    from tf_amp.compare import known_kernels as known

    kernels = known.kernels_here(config)
    for machine in kernels.machines.values():
        for row in known_wrong.rows_for(machine):
            yield Finding(f"kernel {row.name}", f"{row}; stays float32")
        for row in known_wrong.rows_for(machine, known_wrong.ALSO_IN_FLOAT32):
            yield Finding(f"kernel {row.name}", f"{row}; nothing helps")
    for outcomes in kernels.outcomes.values():
        for key, fault in outcomes.wrong.items():
            yield Finding("kernel found", f"{described(key)}: {fault}; stays float32")


def choice(config: AmpConfig) -> Findings:
    """Say which type is chosen here, and why, with a dense layer as example."""
    has_gpu = len(devices.present_devices()) > 1
    chosen = devices.choose(config, "GPU" if has_gpu else "CPU")
    yield Finding("choice", f"{chosen.low_dtype}: {chosen.reason}")
    import tensorflow as tf

    from tf_amp.tools.explanation import explain

    spec = tf.TensorSpec([2048, 2048])
    switch.switch_on(config)
    try:
        plan = explain(tf.function(lambda x, w: tf.math.tanh(x @ w)), spec, spec)
    finally:
        enabling.disable()
    decision = plan.filter(op="MatMul").decisions[0]
    yield Finding(
        "example",
        f"product of two 2048 x 2048 matrices: {decision.dtype} at {config.opt_level} "
        f"({decision.reason})",
    )


def rewrite(config: AmpConfig) -> Findings:
    """Rewrite a small function for real, under settings that always do.

    Those of the user may well leave it as it is, which is nothing to fix.
    """
    import tensorflow as tf

    always = AmpConfig(
        opt_level="O2", cache_dir=config.cache_dir, tune="off", verbose=False
    )
    switch.switch_on(always)
    try:
        before = len(enabling.plans())
        tf.function(lambda x: tf.math.tanh(x @ x))(tf.ones([64, 64]))
        works = len(enabling.plans()) > before
    finally:
        enabling.disable()
    if works:
        yield Finding("rewrite", "works: a function of this process was rewritten")
    else:
        state = "TensorFlow does not hand its graphs over"
        yield Finding("rewrite", state, REINSTALL, fatal=True)


CHECKS = (onednn, found_devices, machine, wrong_kernels, choice, rewrite)


def described(nodes: Mapping[str, str], topology: str) -> str:
    """Say it in a line, with the command that binds a process where it matters.

    Args:
      nodes: lists of CPUs, such as "0-3,8-11", by the nodes' numbers.
      topology: what `nvidia-smi topo -m` prints; empty where there is none.
    """
    # Rows of GPUs, by name, each by its columns' heads.
    lines = _ESCAPES.sub("", topology).splitlines()
    table = [[cell.strip() for cell in line.split("\t")] for line in lines]
    heads = next((row for row in table if row[1:2] == ["GPU0"]), [])
    named = [row for row in table if heads and re.fullmatch(r"GPU\d+", row[0])]
    gpus = {row[0]: dict(zip(heads, row, strict=False)) for row in named}
    said = []
    for node, cpus in nodes.items():
        here = [name for name, row in gpus.items() if row.get(_AFFINITY) == node]
        said.append(", ".join([f"NUMA node {node}: CPUs {cpus}", *here]))
    pairs: dict[str, list[str]] = {}
    for first, second in itertools.combinations(gpus, 2):
        link = gpus[first].get(second, "?")
        pairs.setdefault(link, []).append(f"{first}-{second}")
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

    def numbers(cpus: str) -> set[int]:
        parts = [part.partition("-") for part in cpus.split(",") if part]
        return {n for a, _, b in parts for n in range(int(a), int(b or a) + 1)}

    folders = {path.parent.name[4:]: path for path in root.glob("node[0-9]*/cpulist")}
    lists = {
        node: folders[node].read_text().strip() for node in sorted(folders, key=int)
    }
    return {node: cpus for node, cpus in lists.items() if usable & numbers(cpus)}


def topology_here() -> str:
    """Ask the driver how GPUs are linked; empty where it does not say."""
    command = ("nvidia-smi", "topo", "-m")
    try:
        return subprocess.check_output(
            command, stderr=subprocess.DEVNULL, text=True, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return ""


def show_learned(*, as_json: bool) -> None:
    """Print the lessons of every device in the user's cache folder.

    Raises:
      ConfigError: there is no such folder.
    """
    cache_dir = AmpConfig.from_env().cache_dir
    if cache_dir is None:
        raise ConfigError(f"There is no folder where lessons are kept; {CACHE} is one.")
    path = memory_path(cache_dir)
    learned = {
        name: [(_fields(cell, each), each) for cell, each in sorted(lessons.items())]
        for name, fields in fields_of(path).items()
        if (lessons := lessons_in(fields))
    }
    if as_json:
        show_json(
            {"device": name, **fields}
            for name, rows in learned.items()
            for fields, _ in rows
        )
        return
    if not learned:
        print(f"Nothing was learned yet: {path} has no readings.")
    for name, rows in learned.items():
        cells = []
        for fields, lesson in rows:
            told = "too short to tell"
            if lesson.is_believed:
                told = f"{lesson.ratio:.2f} (within {math.expm1(lesson.error):.0%})"
            elif lesson.logs:
                told = "not believed: readings are few, or disagree"
            named = (f"{fields['op']} {fields['size']}", fields["dtype"])
            cells.append((*named, fields["profile"], told, f"{len(lesson.logs)}"))
        table = FittedTable(_COLUMNS, cells, spare=("profile", "readings"))
        rich.print(escape(name), table)


def _fields(cell: str, lesson: Lesson) -> dict[str, Any]:
    name, _, profile = cell.rstrip(")").partition(" (")
    op, size, dtype = name.rsplit(" ", 2)
    return {
        "op": op,
        "size": size,
        "dtype": dtype,
        "profile": profile,
        "believed": lesson.is_believed,
        "ratio": lesson.ratio if lesson.logs else None,
        "readings": list(lesson.logs),
    }
