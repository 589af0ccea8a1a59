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

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec
from grappler_pass.costs.model import Lesson
from tf_amp import _tensorflow_private as private
from tf_amp.commands._shared import show_json
from tf_amp.commands.doctor import REINSTALL, Finding
from tf_amp.compare.verdicts import fields_of, lessons_in, memory_path
from tf_amp.config import devices
from tf_amp.config.amp_config import CACHE, SETTINGS, AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.report.display import FittedTable, show
from tf_amp.report.versions import versions_of
from tf_amp.runtime import enabling, switch

Findings = Iterator[Finding]

_NVIDIA_DRIVER = pathlib.Path("/proc/driver/nvidia/version")
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "keras", "tf_keras")
_NODES = pathlib.Path("/sys/devices/system/node")
_TIMEOUT_SECONDS = 20
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_AFFINITY = "NUMA Affinity"
_PROFILE = SETTINGS["device_profile"].variable
# Rows and columns of the matrices whose product shows what 16 bits gain.
_SIZES = (512, 1024, 2048, 4096)
# Times as fast, from what on it is a gain, and a large one.
_GAIN, _LARGE_GAIN = 1.05, 1.2
_COLUMNS = ("op and size", "type", "profile", "measured / predicted", "readings")


def versions() -> Finding:
    """List the versions of what computes."""
    pairs = (("Python", platform.python_version()), *versions_of(_DISTRIBUTIONS))
    return Finding("versions", ", ".join(map(" ".join, pairs)))


def gain(config: AmpConfig) -> Findings:
    """Say whether 16 bits help on each kind of device, or on the one that is named."""
    fuses = config.rewrites and bool(config.fuse)
    if config.device_profile is not None:
        profile = devices.profile_of(config, devices.device_of_type("CPU"))
        low_dtype = config.dtype or devices.profile_dtype(profile)
        named = f"{_PROFILE} names this profile."
        said = "\n".join((*gain_by(profile, low_dtype, fuses=fuses), named))
        yield Finding(profile.name, said, kind="answer")
        return
    kinds = dict.fromkeys(d.device_type for d in reversed(devices.present_devices()))
    for kind in kinds:
        device = devices.device_of_type(kind)
        profile = devices.profile_of(config, device)
        low_dtype = config.dtype or device.low_dtype
        said = "\n".join(gain_by(profile, low_dtype, device, fuses=fuses))
        yield Finding(kind, said, kind="answer")


def gain_by(
    profile: DeviceProfile,
    low_dtype: str,
    device: devices.Device | None = None,
    *,
    fuses: bool = True,
) -> Iterator[str]:
    """Yield the answer by a profile, in sentences, and what it rests on.

    The device is the one here that the profile stands for; None where it is named.
    """
    where = "" if device is None else f" on this {device.model or device.device_type}"
    in_float32 = " Fusions may help, which work in float32." * fuses
    if profile.note:
        yield f"It is not known whether 16 bits help{where}.{in_float32}"
        yield profile.note
        return
    size, ratio, with_casts = best_product(CostModel(profile), low_dtype)
    speed = (
        f"In {low_dtype}, a product of two {size} x {size} matrices is expected to be "
        f"{ratio:.2f} times as fast as in float32"
    )
    if ratio < _GAIN:
        yield f"16 bits gain nothing{where}.{in_float32}"
        yield f"{speed}."
        if device is not None and (why := _why_no_gain(device)):
            yield why
        yield (
            "At O1, the default, a step stays float32 unless its own runs show that 16 "
            "bits are faster."
        )
    else:
        help = "help" if ratio >= _LARGE_GAIN else "help a little"
        yield f"16 bits {help}{where}.{' Fusions may help, too.' * fuses}"
        yield f"{speed}, and {with_casts:.2f} times with the casts around it."
    if device is not None:
        origin = _origin(profile, device)
        yield f"These are prices of the profile {profile.name}, {origin}."


def _origin(profile: DeviceProfile, device: devices.Device) -> str:
    """Say whether the profile of a device was measured on it."""
    if profile.device is not None:
        return f"measured here on {profile.provenance['date']}"
    kind = device.device_type
    return f"the nearest that is known; `tf-amp calibrate` measures this {kind}"


def best_product(model: CostModel, low_dtype: str) -> tuple[int, float, float]:
    """Return the size of the square product that 16 bits do most for, and how much.

    Returns:
      rows of each matrix; how many times as fast it is in 16 bits; the same with casts
      of both operands and of the result.
    """

    def gains(size: int) -> tuple[int, float, float]:
        matrix = TensorSpec((size, size), "float32")
        call = OpCall("MatMul", {}, (matrix, matrix), (matrix,))
        float32, low = (model.price(call, t).seconds for t in ("float32", low_dtype))
        down = model.cast_price(matrix.elements, "float32", low_dtype).seconds
        up = model.cast_price(matrix.elements, low_dtype, "float32").seconds
        return size, float32 / low, float32 / (low + 2.0 * down + up)

    return max(map(gains, _SIZES), key=lambda gained: gained[1:])


def _why_no_gain(device: devices.Device) -> str:
    """Say what a CPU lacks; "" where nothing is known to say."""
    if device.device_type != "CPU":
        return ""
    if private.is_onednn_enabled() is False:
        return "oneDNN is off in TensorFlow, so that 16 bits are emulated."
    if not devices.has_bfloat16_units():
        return "This CPU has no 16-bit units: neither amx_bf16 nor avx512_bf16."
    if "amx_bf16" not in devices.cpu_flags():
        return (
            "This CPU has avx512_bf16 but not amx_bf16, and on such CPUs products in "
            "16 bits may take longer."
        )
    return ""


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
        if profile.device is not None or config.device_profile is None:
            state += f", {_origin(profile, device)}"
        yield Finding(device.device_type, state)
        if profile.note:
            yield Finding(device.device_type, profile.note, "tf-amp calibrate")
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

    def kept(what: str, state: str) -> Finding:
        return Finding(what, f"{state}; tf-amp keeps it in float32", kind="kept")

    for machine in kernels.machines.values():
        for row in known_wrong.rows_for(machine):
            yield kept(f"kernel {row.name}", f"{row}")
        for row in known_wrong.rows_for(machine, known_wrong.ALSO_IN_FLOAT32):
            state = f"{row}; with or without tf-amp"
            yield Finding(f"kernel {row.name}", state, kind="bug")
    for outcomes in kernels.outcomes.values():
        for key, fault in outcomes.wrong.items():
            yield kept("kernel found", f"{described(key)}: {fault}")


def choice(config: AmpConfig) -> Findings:
    """Say which type is chosen here, and why, with a dense layer as example."""
    has_gpu = len(devices.present_devices()) > 1
    chosen = devices.choose(config, "GPU" if has_gpu else "CPU")
    yield Finding("type", f"{chosen.low_dtype}: {chosen.reason}")
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
        "layer",
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


CHECKS = (gain, onednn, found_devices, machine, wrong_kernels, choice, rewrite)


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
        show(name, table)


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
