"""Profiles of devices: their JSON form, loading, validation and saving.

A profile is one JSON object::

    name, kind ("cpu" or "gpu"), description
    provenance   date, device, how it was obtained, sources
    device       the text of the `Key` that a calibrated profile is found again by, or
                 null
    roofline     the fields of ``Roofline``
    classes      op class -> {"axes": {axis: [sizes]}, "seconds": {dtype: [seconds]}}
    call_seconds optional: what starting a graph takes on the host, whatever it holds
    flags, threads  optional: instruction sets of a CPU, and threads of one op: what
                 kernels that compute wrong numbers are known by
    capability   optional: compute capability of a measured GPU, such as "9.0"
    extends      optional: another shipped profile whose classes serve where this one
                 has none, "scale" times as slow, except the class prefixes listed in
                 "without"

Seconds are listed with the last axis fastest. Casts are the class "Cast", where
"float32>bfloat16" stands for a dtype. `profile_for` chooses
the profile of a device: a measured one of its own, else the nearest shipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from grappler_pass.costs.atomic_file import replacing
from grappler_pass.costs.op_classes import COLD, UNALIGNED, axes_of
from grappler_pass.costs.times import Grid, Multiprocessors, Roofline
from grappler_pass.errors import AmpError, guess

FORMAT = 1
# Behind the names of profiles.
UNDER_XLA = " under XLA"
_SHIPPED = Path(__file__).parent / "profiles"


class ProfileError(AmpError, ValueError):
    """A profile that cannot be found, read or believed."""


class DeviceKey(NamedTuple):
    """What distinguishes a CPU, with TensorFlow as it runs there, from others.

    It must agree for a measured profile to hold.

    Args:
        model: processor name.
        flags: the instruction sets that decide which kernels run.
        threads: threads that one op may use.
        onednn: whether TensorFlow's oneDNN kernels are on.
        float32_products: the type that these may round float32 to; "" for none.
    """

    model: str
    flags: frozenset[str]
    threads: int
    onednn: bool
    float32_products: str = ""

    def __str__(self) -> str:
        """Return all of it in words, which profiles and verdicts are kept by."""
        flags = " ".join(sorted(self.flags)) or "no vector instructions"
        onednn = "on" if self.onednn else "off"
        name = f"{self.model}, {flags}, {self.threads} threads, oneDNN {onednn}"
        if self.float32_products:
            return f"{name}, float32 products in {self.float32_products}"
        return name


class GpuKey(NamedTuple):
    """What distinguishes a GPU, with TensorFlow as it runs there, from others.

    It must agree for a measured profile to hold.

    Args:
        model: as TensorFlow reports it.
        capability: compute capability; None: TensorFlow reports none.
        driver: version of NVIDIA's driver, or "unknown".
        tf32: whether float32 products may be rounded to TensorFloat-32; None: this GPU
            has no such products.
    """

    model: str
    capability: tuple[int, int] | None
    driver: str = "unknown"
    tf32: bool | None = None

    def __str__(self) -> str:
        """Return all of it in words, which profiles and verdicts are kept by."""
        words = [self.model, f"driver {self.driver}"]
        if self.capability is not None:
            words.insert(1, "compute capability {}.{}".format(*self.capability))
        if self.tf32 is False:
            words.append("TF32 off")
        return ", ".join(words)


Key = DeviceKey | GpuKey


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What one device is known to take; the module names the fields.

    Args:
        name: of the shipped profile, or "calibrated".
        grids: seconds by op class and dtype.
        data: the profile as written.
        flags: instruction sets of a CPU that decide which kernels run.
        threads: of one op; None: not known.
        note: what whoever reads a plan is to know of its prices; "" for nothing.
    """

    name: str
    kind: str
    description: str
    provenance: Mapping[str, Any]
    device: str | None
    roofline: Roofline
    grids: Mapping[tuple[str, str], Grid]
    data: Mapping[str, Any]
    call_seconds: float = 0.0
    flags: frozenset[str] = frozenset()
    threads: int | None = None
    note: str = ""
    _extended: dict[tuple[str, str], Grid | None] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @staticmethod
    def names() -> tuple[str, ...]:
        """Return the names of the shipped profiles."""
        return tuple(sorted(path.stem for path in _SHIPPED.glob("*.json")))

    @classmethod
    def load(cls, name_or_path: str | os.PathLike[str]) -> DeviceProfile:
        """Read a shipped profile by name, or any profile by its path.

        Raises:
            ProfileError: there is none of that name, or the file is not a profile.
        """
        return cls.from_json(_read(name_or_path))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeviceProfile:
        """Build a profile from decoded JSON.

        Raises:
            ProfileError: an entry is missing or makes no sense; the message names it.
        """
        try:
            if data["format"] != FORMAT:
                raise ProfileError(
                    f"profile format {data['format']!r}, expected {FORMAT}; "
                    "measure again with `tf-amp calibrate`"
                )
            grids: dict[tuple[str, str], Grid] = {}
            call_seconds = 0.0
            if "extends" in data:
                base, scale = cls.load(data["extends"]), float(data.get("scale", 1.0))
                call_seconds = base.call_seconds
                for key, grid in base.grids.items():
                    if not key[0].startswith(tuple(data.get("without", ()))):
                        grids[key] = grid.scaled(scale)
            for op_class, entry in data["classes"].items():
                for dtype, seconds in entry["seconds"].items():
                    grids[op_class, dtype] = _grid(op_class, entry["axes"], seconds)
            call_seconds = float(data.get("call_seconds", call_seconds))
            if not 0.0 <= call_seconds < math.inf:
                raise ProfileError(
                    f"call_seconds is {call_seconds}, expected 0 or more"
                )
            device = data.get("device")
            return cls(
                name=str(data["name"]),
                kind=str(data["kind"]),
                description=str(data["description"]),
                provenance=data["provenance"],
                device=None if device is None else str(device),
                roofline=_roofline(data["roofline"]),
                grids=grids,
                data=data,
                call_seconds=call_seconds,
                flags=frozenset(map(str, data.get("flags", ()))),
                threads=None if "threads" not in data else int(data["threads"]),
            )
        except ProfileError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as why:
            raise ProfileError(f"profile lacks or garbles {why}") from why

    def of_device(self) -> DeviceProfile:
        """Return the profile of the device alone, however fast its host starts ops."""
        roofline = dataclasses.replace(self.roofline, dispatch_seconds=0.0)
        return dataclasses.replace(self, roofline=roofline)

    def compiled(self) -> DeviceProfile:
        """Return the profile of what XLA compiles for the device."""
        name = f"{self.name}{UNDER_XLA}"
        return dataclasses.replace(self, name=name, roofline=self.roofline.compiled())

    def with_tensor_float_32(self, is_used: bool) -> DeviceProfile:
        """Return the profile with float32 products rounded to TensorFloat-32, or not.

        Where it has no rate for that it stays as it is.
        """
        roofline = dataclasses.replace(self.roofline, tensor_float_32=is_used)
        return dataclasses.replace(self, roofline=roofline)

    def grid(self, op_class: str, dtype: str) -> Grid | None:
        """Return the measured grid of a class in a dtype, if there is one.

        A product's layout that was not measured is taken for the plain one, as are
        rows that are not in the cache, and channels that are no whole blocks.
        """
        grid = self.grids.get((op_class, dtype))
        if grid is None and op_class.endswith((".ta", ".tb", COLD, UNALIGNED)):
            grid = self.grids.get((op_class.rpartition(".")[0], dtype))
        return grid

    def extended_grid(self, op_class: str, dtype: str) -> Grid | None:
        """Return the grid of a class with sizes below those measured, made once."""
        key = (op_class, dtype)
        if key not in self._extended:
            grid = self.grid(op_class, dtype)
            like = None if dtype == "float32" else self.grid(op_class, "float32")
            self._extended[key] = None if grid is None else grid.extended(like)
        return self._extended[key]

    def save(self, path: Path) -> None:
        """Write the profile atomically: readers see the old file or the new one.

        Raises:
            OSError: the folder cannot be made or written, or the disk is full.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(profile_text(self.data))


def profile_text(data: Mapping[str, Any]) -> str:
    """Return ``data`` as JSON with one line per class and dtype, made to be diffed."""
    head = {key: value for key, value in data.items() if key != "classes"}
    lines = []
    for op_class, entry in sorted(data["classes"].items()):
        rows = ",\n".join(
            f"    {json.dumps(dtype)}: {json.dumps(seconds)}"
            for dtype, seconds in sorted(entry["seconds"].items())
        )
        axes = json.dumps(entry["axes"])
        lines.append(
            f'  {json.dumps(op_class)}: {{"axes": {axes}, "seconds": {{\n{rows}}}}}'
        )
    opening = json.dumps(head, indent=1)[:-2]
    return opening + ',\n "classes": {\n' + ",\n".join(lines) + "\n }\n}\n"


def _read(name_or_path: str | os.PathLike[str]) -> Mapping[str, Any]:
    path = Path(name_or_path)
    if path.suffix != ".json" and path.parent == Path():
        path = _SHIPPED / f"{path.name}.json"
        if not path.is_file():
            name, names = os.fspath(name_or_path), DeviceProfile.names()
            raise ProfileError(
                f"unknown device profile {name!r}{guess(name, names) or '.'} Known are "
                f"{', '.join(names)}, and paths of .json files."
            )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ProfileError(f"no device profile at {path}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ProfileError(f"cannot read device profile {path}: {error}") from error
    if not isinstance(data, dict):
        raise ProfileError(f"device profile {path} is not a JSON object")
    return data


def _grid(op_class: str, axes: Mapping[str, list[float]], seconds: list[float]) -> Grid:
    if tuple(axes) != axes_of(op_class):
        raise ProfileError(
            f"class {op_class!r} has axes {list(axes)}, expected "
            f"{list(axes_of(op_class))}"
        )
    points = math.prod(len(sizes) for sizes in axes.values())
    if points == 0 or points != len(seconds):
        raise ProfileError(
            f"class {op_class!r} holds {len(seconds)} values for {points} points"
        )
    if not all(0.0 < value < math.inf for value in seconds):
        raise ProfileError(f"class {op_class!r} holds a cost that is not positive")
    for axis, sizes in axes.items():
        if sizes != sorted(set(sizes)) or sizes[0] <= 0:
            raise ProfileError(f"axis {axis!r} of class {op_class!r} does not increase")
    return Grid(tuple(map(tuple, axes.values())), tuple(seconds))


def _made(kind: type[Any], data: Mapping[str, Any]) -> Any:
    """Return a dataclass with what JSON says of its fields, else their defaults."""
    converted: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        if each.name in data or each.default is dataclasses.MISSING:
            convert = {"int": int, "float": float}.get(str(each.type), dict)
            converted[each.name] = convert(data[each.name])
    return kind(**converted)


def _roofline(data: Mapping[str, Any]) -> Roofline:
    roofline: Roofline = _made(Roofline, {"slowdown": {}, **data})
    rates = (roofline.matrix_flops, roofline.vector_flops, roofline.bytes_per_second)
    for rate in rates:
        if "float32" not in rate or not all(value > 0 for value in rate.values()):
            raise ProfileError("a roofline needs a positive rate for float32")
    if roofline.overhead_seconds <= 0:
        raise ProfileError("a roofline needs a positive overhead_seconds")
    if data.get("multiprocessors") is None:
        return roofline
    units: Multiprocessors = _made(Multiprocessors, data["multiprocessors"])
    if units.count < 1 or min(units.cache_bytes_per_second, units.direct_flops) <= 0:
        raise ProfileError("multiprocessors need a positive count and positive rates")
    return dataclasses.replace(roofline, multiprocessors=units)


# The instruction sets that decide which 16-bit kernels a CPU runs.
DECISIVE_FLAGS = frozenset(
    """
    avx avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16 amx_fp16 avx_ne_convert asimd bf16
    sve
    """.split()
)


def nearest_to_cpu(key: DeviceKey) -> str:
    """Return the name of the shipped profile nearest to a CPU.

    Without oneDNN's kernels 16 bits are emulated, whatever the CPU has. Products by
    avx512_bf16 take Intel's CPUs longer than those in float32, and AMD's half the time:
    both measured.
    """
    if key.onednn and "amx_bf16" in key.flags:
        return "cpu-amx-bf16"
    if key.onednn and "avx512_bf16" in key.flags:
        intel = key.model.startswith("Intel")
        return "cpu-intel-avx512-bf16" if intel else "cpu-avx512-bf16"
    return "cpu-generic"


def nearest_to_gpu(key: GpuKey) -> str:
    """Return the name of the shipped profile nearest to a GPU."""
    capability = key.capability
    newest = "h200" if "H200" in key.model.upper() else "h100"
    # Without tensor cores, or not known: the prices under which nothing is worth
    # converting.
    profiles = {(7, 0): "cpu-generic", (8, 0): "v100", (9, 0): "a100"}
    if capability is None:
        return "cpu-generic"
    if capability == (7, 5):
        return "t4"
    return next((p for below, p in profiles.items() if capability < below), newest)


def nearest_to(key: Key) -> str:
    """Return the name of the shipped profile nearest to a device."""
    return nearest_to_gpu(key) if isinstance(key, GpuKey) else nearest_to_cpu(key)


# What is said of devices that no shipped profile was measured on any kind of.
_UNMEASURED = (
    "This {} has not been measured. Its plans use the prices of a CPU without 16-bit "
    "units, so at O1 they stay float32. `tf-amp calibrate` measures it."
)


def _note_on(key: Key) -> str:
    """Say that nothing like a device was measured; "" where something was."""
    if isinstance(key, GpuKey):
        return "" if key.capability is not None else _UNMEASURED.format("GPU")
    # Every CPU that was measured has these: no Arm CPU was.
    is_known = any(flag.startswith(("avx", "amx")) for flag in key.flags)
    return "" if is_known else _UNMEASURED.format("CPU")


def calibrated_path(cache_folder: Path, key: Key) -> Path:
    """Return where the measured profile of the device with ``key`` is kept."""
    digest = hashlib.sha256(str(key).encode()).hexdigest()[:16]
    return cache_folder / "profiles" / f"{digest}.json"


def calibrated_profile(cache_folder: Path, key: Key) -> DeviceProfile | None:
    """Return the measured profile of the device with ``key``, if one is kept.

    A file that is no profile is set aside as ``.broken``, with a warning.
    """
    path = calibrated_path(cache_folder, key)
    try:
        profile = DeviceProfile.load(path) if path.is_file() else None
    except OSError as error:
        logging.warning("cannot look into the cache folder %s: %s", path.parent, error)
        return None
    except ProfileError as error:
        with contextlib.suppress(OSError):
            path = path.replace(path.with_suffix(".broken"))
        message = "ignoring a broken device profile, now at %s: %s"
        logging.warning(message, path, error)
        return None
    return profile if profile is not None and profile.device == str(key) else None


def profile_for(
    requested: str | None, key: Key, cache_folder: Path | None
) -> DeviceProfile:
    """Return the requested profile, else the measured one, else the nearest shipped.

    Raises:
        ProfileError: ``requested`` names no profile.
    """
    if requested:
        return DeviceProfile.load(requested)
    measured = calibrated_profile(cache_folder, key) if cache_folder else None
    if measured is not None:
        return measured
    nearest = DeviceProfile.load(nearest_to(key))
    return dataclasses.replace(nearest, note=_note_on(key))


def keep_profile(profile: DeviceProfile, path: Path) -> Path | None:
    """Save a measured profile; on a full or read-only disk warn and return None."""
    try:
        profile.save(path)
    except OSError as error:
        logging.warning(
            "the profile was not kept: %s cannot be written: %s", path, error
        )
        return None
    return path
