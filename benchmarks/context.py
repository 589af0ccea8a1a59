"""What a reader needs to repeat the figures."""

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.machine import Machine, this_machine
from tf_amp.report.versions import versions_of
from tf_amp.tools.bench.record import revision_of

_PACKAGES = ("tensorflow", "tensorflow-cpu", "keras", "numpy", "scipy")
_ROOT = Path(__file__).resolve().parent.parent
# What the programs write themselves says nothing of what was measured.
_WRITTEN = (
    "benchmarks/raw",
    "benchmarks/RESULTS.md",
    "benchmarks/gpu/RESULTS.md",
    "benchmarks/gpu/raw",
    "docs/*.png",
    "evidence/raw",
)


@dataclass(frozen=True)
class Context:
    """Machine, versions, date, command and git revision of a measurement.

    `rounds` is 0 where they are said elsewhere. `revision` ends in "+" where files
    differed from it; "" where it was not kept.
    """

    machine: Machine
    versions: tuple[tuple[str, str], ...]
    date: str
    command: str
    rounds: int
    revision: str = ""

    def markdown(self) -> str:
        """Return the facts as a list."""
        machine = self.machine
        versions = ", ".join(f"{name} {version}" for name, version in self.versions)
        return "\n".join(
            (
                f"- Machine: {machine.processor}, {machine.cores} cores, kind "
                f"**{machine.kind}** (flags: {' '.join(machine.flags)})",
                f"- Versions: {versions}",
                f"- {self.measured()}",
            )
        )

    def measured(self) -> str:
        """Return when it was measured, by which command, and of which revision."""
        revision = f", revision {self.revision}" if self.revision else ""
        rounds = f", {self.rounds} rounds" if self.rounds else ""
        return f"{self.date}, `{self.command}`{rounds}{revision}"


def context_of(command: str, *, rounds: int) -> Context:
    """Return the context of a measurement made here and now."""
    return Context(
        machine=this_machine(),
        versions=versions_of(_PACKAGES),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        command=command,
        rounds=rounds,
        revision=revision_of(_ROOT, _WRITTEN),
    )
