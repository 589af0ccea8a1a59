"""What a reader needs to repeat the figures."""

from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata

from benchmarks.machine import Machine, this_machine

_PACKAGES = ("tf-amp", "tensorflow", "tensorflow-cpu", "keras", "numpy", "scipy")


@dataclass(frozen=True)
class Context:
    """Machine, versions, date and command of a measurement."""

    machine: Machine
    versions: tuple[tuple[str, str], ...]
    date: str
    command: str
    rounds: int

    def markdown(self) -> str:
        """Return the facts as a list."""
        machine = self.machine
        versions = ", ".join(f"{name} {version}" for name, version in self.versions)
        return "\n".join(
            (
                f"- Machine: {machine.processor}, {machine.cores} cores, kind "
                f"**{machine.kind}** (flags: {' '.join(machine.flags)})",
                f"- Versions: {versions}",
                f"- {self.date}, `{self.command}`, {self.rounds} rounds",
            )
        )


def context_of(command: str, *, rounds: int) -> Context:
    """Return the context of a measurement made here and now."""
    return Context(
        machine=this_machine(),
        versions=tuple(_versions().items()),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        command=command,
        rounds=rounds,
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
