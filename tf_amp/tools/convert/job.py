"""Check what a conversion is asked for, and report what it did."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rich.console import Group
from rich.text import Text

from grappler_pass.planning.plan import Plan
from tf_amp.config.amp_config import AmpConfig, checked_settings, with_settings
from tf_amp.config.setting_values import checked_patterns, checked_word
from tf_amp.errors import ConfigError, ScriptMissingError
from tf_amp.report import codec
from tf_amp.report.counts import counted
from tf_amp.report.display import Display
from tf_amp.tools.convert.files import size_of
from tf_amp.tools.verify.verification import Verification
from tf_amp.tracing.stamps import current_config

MIXED, FLOAT32 = "mixed", "float32"
_ALLOWED = {"weights": (FLOAT32, "low"), "to": (MIXED, FLOAT32)}


@dataclasses.dataclass(frozen=True)
class ConversionOptions:
    """What the user wants; names and meanings are those of `tf_amp.convert`.

    Attributes:
      settings: those that go before what is in force.
      config: what is in force, with them in it.
    """

    settings: Mapping[str, Any]
    config: AmpConfig
    keep_io: bool = True
    weights: str = FLOAT32
    calibration: pathlib.Path | None = None
    verify: bool = False
    batch: int | None = None
    to: str = MIXED


def options_from(
    *,
    dtype: str | None = None,
    device_profile: str | None = None,
    opt_level: str | None = None,
    exclude: Iterable[str] = (),
    **others: Any,
) -> ConversionOptions:
    """Return checked options; what is not given comes from the environment.

    Raises:
      ConfigError: a value is unknown, or two options contradict each other.
      ScriptMissingError: there is no file of calibration data.
    """
    in_force = current_config() or AmpConfig.from_env()
    settings = checked_settings(dtype=dtype, opt_level=opt_level)
    settings["exclude"] = checked_patterns(exclude)
    if device_profile is not None:
        settings["device_profile"] = device_profile
    options = ConversionOptions(settings, with_settings(in_force, settings), **others)
    for name, allowed in _ALLOWED.items():
        checked_word(getattr(options, name), name, allowed, fold=str)
    if options.batch is not None and options.batch < 1:
        raise ConfigError(f"batch: received {options.batch}; at least 1 is needed.")
    if options.calibration is not None and not options.calibration.is_file():
        raise ScriptMissingError(
            f"calibration: there is no file {options.calibration}."
        )
    is_low = options.weights == "low" or not options.keep_io
    is_for_mixing = is_low or options.verify or options.calibration is not None
    if options.to == FLOAT32 and is_for_mixing:
        raise ConfigError(
            "--to float32 (to='float32') takes a converted model back; --weights low, "
            "--calibration, --verify and --no-keep-io (keep_io=False) belong to "
            "conversions to mixed precision."
        )
    return options


@dataclasses.dataclass(frozen=True)
class ConversionJob:
    """What is converted, to what, and how.

    Source and target are as the user named them; `path` is read: the source, or what a
    Keras file was exported to. The work began at `begin`, in seconds of
    `time.perf_counter`.
    """

    source: pathlib.Path
    path: pathlib.Path
    target: pathlib.Path
    kind: str
    options: ConversionOptions
    begin: float

    def report(self, written: pathlib.Path, **fields: Any) -> ConversionReport:
        """Return the report of what is `written`, with fields that were `found`."""
        return ConversionReport(
            source=str(self.source),
            target=str(self.target),
            kind=self.kind,
            to=self.options.to,
            opt_level=self.options.config.opt_level,
            weights=self.options.weights,
            bytes_before=size_of(self.path),
            bytes_after=size_of(written),
            seconds=time.perf_counter() - self.begin,
            **fields,
        )


JSON_FILE, _TEXT_FILE = "report.json", "plan.txt"
# Of the text; those that gain most. All are in the JSON.
_ROWS = 200
_MEBI = 2**20
_MILLI = 1e3


@dataclasses.dataclass(frozen=True)
class SignatureGain:
    """Predicted seconds of one call of a signature, as far as products go."""

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("ratio",)

    seconds_before: float
    seconds_after: float

    @property
    def ratio(self) -> float:
        """Seconds before over seconds after."""
        return self.seconds_before / self.seconds_after if self.seconds_after else 1.0


@dataclasses.dataclass(frozen=True)
class Storage:
    """What of a model is stored in 16 bits, and which matrices are not, and why."""

    variables: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    kept: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class ConversionReport(Display):
    """A finished conversion.

    Attributes:
      source: what was converted.
      target: where the result is.
      kind: of the source, such as "SavedModel".
      to: "mixed" or "float32".
      low_dtype: "bfloat16" or "float16".
      device_profile: the name of the profile it was planned for.
      opt_level: "O0" to "O3".
      weights: "float32" or "low".
      signatures: predicted gain by name.
      plans: by name of function; "" is the graph itself.
      left_alone: functions that keep every type, and why.
      storage: what is stored in 16 bits.
      low_io: inputs and outputs of signatures in 16 bits, as "signature.name".
      bytes_before: of the source.
      bytes_after: of the result, without this report.
      warnings: what the user should know.
      seconds: that it took.
      verifications: by signature, if the result was to be verified.
    """

    source: str
    target: str
    kind: str
    to: str
    low_dtype: str = ""
    device_profile: str = ""
    opt_level: str
    weights: str
    signatures: Mapping[str, SignatureGain] = dataclasses.field(default_factory=dict)
    plans: Mapping[str, Plan] = dataclasses.field(default_factory=dict)
    left_alone: Mapping[str, str] = dataclasses.field(default_factory=dict)
    storage: Storage = Storage()
    bytes_before: int
    bytes_after: int
    low_io: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float
    verifications: Mapping[str, Verification] = dataclasses.field(default_factory=dict)

    @property
    def is_verified(self) -> bool:
        """Return whether no verification failed."""
        return all(found.ok for found in self.verifications.values())

    def to_json(self) -> str:
        """Return JSON with whole plans."""
        fields = {**codec.plain(self), "format": "tf-amp conversion 1"}
        fields["device"] = fields.pop("device_profile")
        return codec.to_json(fields)

    def save(self, folder: pathlib.Path) -> None:
        """Write the report as JSON, and its plans as text, into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / JSON_FILE).write_text(self.to_json(), encoding="utf-8")
        plans = "\n\n".join(str(p.top(_ROWS)) for p in self.plans.values())
        (folder / _TEXT_FILE).write_text(f"{self}\n\n{plans}\n", encoding="utf-8")

    def __str__(self) -> str:
        """Print a few lines: what went where, the gain, the sizes, what to know."""
        return "\n".join([self._text(), *map(str, self.verifications.values())])

    def __rich__(self) -> Group:
        """Show the same in a terminal."""
        return Group(Text(self._text()), *self.verifications.values())

    def summary(self) -> str:
        """Return one line: what went where, and what became of it."""
        return f"{self.kind} {self.source} -> {self.target}: {self._outcome()}"

    def _text(self) -> str:
        lines = [self.summary()]
        lines += [
            f"  {name}: predicted {gain.seconds_before * _MILLI:.3g} -> "
            f"{gain.seconds_after * _MILLI:.3g} ms ({gain.ratio:.2f}x)"
            for name, gain in self.signatures.items()
        ]
        before, after = self.bytes_before / _MEBI, self.bytes_after / _MEBI
        weights, stored = "weights in float32", self.storage
        if self.weights != "float32":
            weights = (
                f"{len(stored.variables)} variables and {len(stored.constants)} "
                f"constants in {self.low_dtype}, {len(stored.kept)} matrices in float32"
            )
        lines.append(
            f"  size {before:.1f} -> {after:.1f} MiB ({weights}), {self.seconds:.1f} s"
        )
        if self.low_io:
            lines.append(f"  in {self.low_dtype}: {', '.join(self.low_io)}")
        left_alone = self.left_alone.items()
        lines += [f"  left alone: {name or 'the graph'}: {w}" for name, w in left_alone]
        lines += [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines)

    def _outcome(self) -> str:
        if self.to == "float32":
            return "float32 again"
        rows = [row for plan in self.plans.values() for row in plan.decisions]
        low = {row.slot.node for row in rows if row.is_low}
        nodes = {row.slot.node for row in rows}
        casts = sum(plan.casts for plan in self.plans.values())
        where = f"({self.opt_level}, {self.device_profile})"
        if not low:
            # In 16 bits though nothing is computed so.
            changed = []
            if self.storage.variables or self.storage.constants:
                changed.append(f"weights are stored in {self.low_dtype}")
            if self.low_io:
                changed.append(f"signatures take and give {self.low_dtype}")
            if changed:
                words = " and ".join(changed)
                return f"computes in float32 as before {where}; {words}"
            return f"nothing to gain in {self.low_dtype} {where}; it stays unchanged"
        return (
            f"{len(low)} of {len(nodes)} operations in {self.low_dtype} {where}, with "
            f"{counted(casts, 'cast')}"
        )
