"""What an audit has found; prints itself as tables for 80 columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grappler_pass.planning.plan import Plan
from tf_amp.config.setting_values import LIST_PREFIX
from tf_amp.report.display import Display, plain_text
from tf_amp.tools.audit.remedies import Obstacle

_WIDTH = 80
_MILLI = 1e3
_MEBI = 2.0**20
_PAYS = 1.02
_OP_WIDTH = 30
_NOTHING = (
    "It has no matrix product or convolution that may run in 16 bits, which are what "
    "gains from them."
)


@dataclasses.dataclass(frozen=True, repr=False)
class Audit(Display):
    """One graph on one device.

    Attributes:
      device: name of the profile.
      graph: name of the graph.
      plan: what the pass would do there.
      obstacles: what holds it back, worst first.
      kernels: where it was looked up what can run in 16 bits.
      assumptions: how the prices were obtained.
    """

    device: str
    graph: str
    plan: Plan
    obstacles: tuple[Obstacle, ...]
    kernels: str
    assumptions: str

    @property
    def ratio(self) -> float:
        """Predicted seconds in float32 over those in mixed precision."""
        return self.plan.predicted_speedup

    @property
    def memory_bytes(self) -> tuple[float, float] | None:
        """Peak of live activations in float32 and mixed; None where unknown."""
        before, after = self.plan.peak_bytes_before, self.plan.peak_bytes_after
        return (before, after) if before else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without the rows of the plan."""
        memory = self.memory_bytes or (None, None)
        return {
            "device": self.device,
            "graph": self.graph,
            "low_dtype": self.plan.low_dtype,
            "seconds_float32": self.plan.seconds_before,
            "seconds_mixed": self.plan.seconds_after,
            "ratio": self.ratio,
            "activation_bytes_float32": memory[0],
            "activation_bytes_mixed": memory[1],
            "kernels": self.kernels,
            "assumptions": self.assumptions,
            "guessed_shapes": bool(self.plan.guessed),
            "obstacles": [dataclasses.asdict(each) for each in self.obstacles],
        }

    def summary(self) -> str:
        """Return one line: whether it pays."""
        pays = self.ratio >= _PAYS and not self.plan.is_empty
        answer = "pays" if pays else "does not pay"
        return f"{self.graph}: {self.plan.low_dtype} {answer} on {self.device}"

    def __str__(self) -> str:
        """Print as tables for 80 columns."""
        return plain_text(self.__rich__(), _WIDTH)

    def __rich__(self) -> RenderableType:
        """Show the verdict, the figures and the obstacles in a terminal."""
        parts: list[RenderableType] = [Text(self.summary(), "bold")]
        if self.plan.is_forgone:
            parts.append(Text(_NOTHING))
        parts.append(_figures(self))
        if span := self.plan.speedup_range:
            parts.append(Text(f"The ratio is {span}."))
        if self.plan.guessed:
            parts.append(Text(self.plan.guessed))
        if self.obstacles:
            parts.append(_obstacles(self.obstacles))
        return Padding(Group(*parts), (0, 0, 1, 0))


def print_audits(audits: Sequence[Audit]) -> None:
    """Print the reports, and what was assumed for all of them."""
    console = Console(markup=False, highlight=False)
    for audit in audits:
        console.print(audit)
    if audits:
        console.print(
            "ms: of the mixed step; lost: of these, what 16 bits at their best would "
            "save. CLEARLIST_ADD, DENYLIST_ADD: variables that start with "
            f"{LIST_PREFIX}. Which ops run in 16 bits: {audits[0].kernels}. "
            f"Costs: {audits[0].assumptions}. Left out: input pipeline, host, "
            "transfers between devices, XLA's fusions outside of jit_compile."
        )


def _figures(audit: Audit) -> Table:
    plan, memory = audit.plan, audit.memory_bytes
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("", "float32", "mixed", "ratio"):
        table.add_column(title, justify="right" if title else "left")
    table.add_row(
        "step (ms)",
        f"{plan.seconds_before * _MILLI:.4g}",
        f"{plan.seconds_after * _MILLI:.4g}",
        f"{audit.ratio:.2f}",
    )
    if memory is not None:
        before, after = memory
        table.add_row(
            "activations (MiB)",
            f"{before / _MEBI:,.1f}",
            f"{after / _MEBI:,.1f}",
            f"{before / after:.2f}" if after else "-",
        )
    return table


def _obstacles(obstacles: Sequence[Obstacle]) -> Table:
    table = Table(
        title="What holds it back",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        expand=True,
    )
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("lost", justify="right", no_wrap=True)
    table.add_column("op, shape, node", overflow="fold", width=_OP_WIDTH)
    table.add_column("why => remedy", overflow="fold", ratio=1)
    for obstacle in obstacles:
        times = f"{len(obstacle.nodes)} x " if len(obstacle.nodes) > 1 else ""
        name = _short(obstacle.nodes[0])
        table.add_row(
            f"{obstacle.seconds * _MILLI:.3g}",
            f"{obstacle.lost_seconds * _MILLI:.3g}",
            Text(f"{times}{obstacle.op} {obstacle.dtype}\n{obstacle.shape}\n{name}"),
            Text("\n=> ".join(filter(None, (obstacle.why, obstacle.remedy)))),
        )
    return table


def _short(name: str) -> str:
    """Return the end of a node's name, from the start of a scope, on one line."""
    if len(name) <= _OP_WIDTH:
        return name
    end = name[-_OP_WIDTH + 2 :]
    return "../" + end.partition("/")[2] if "/" in end else ".." + end
