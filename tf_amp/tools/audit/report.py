"""Audits as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from grappler_pass.notebook_display import plain_text
from tf_amp.config import list_edits

if TYPE_CHECKING:
    from tf_amp.tools.audit.audits import Audit

_WIDTH = 80
_MILLI = 1e3
_MEBI = 2.0**20
_PAYS = 1.02
_OP_WIDTH = 30
_NOTHING = (
    "It has no matrix product or convolution that may run in 16 bits, which are what "
    "gains from them."
)


def text_of(audit: Audit) -> str:
    """Return the report of one graph as plain text."""
    return plain_text(report_of(audit), _WIDTH)


def print_audits(audits: Sequence[Audit]) -> None:
    """Print the reports, and what was assumed for all of them."""
    console = Console(markup=False, highlight=False)
    for audit in audits:
        console.print(report_of(audit))
    if audits:
        console.print(
            "ms: of the mixed step; lost: of these, what 16 bits at their best would "
            "save. CLEARLIST_ADD, DENYLIST_ADD: variables that start with "
            f"{list_edits.PREFIX}. Which ops run in 16 bits: {audits[0].kernels}. "
            f"Prices: {audits[0].assumptions}. Left out: input pipeline, host, "
            "transfers between devices, XLA's fusions."
        )


def report_of(audit: Audit) -> RenderableType:
    """Return the verdict, the figures and the obstacles of one graph."""
    parts: list[RenderableType] = [Text(verdict(audit), "bold")]
    if audit.plan.is_forgone:
        parts.append(Text(_NOTHING))
    parts.append(_figures(audit))
    if audit.guessed_shapes:
        parts.append(
            Text(
                "Unknown dimensions were taken as 32 where they come first, as 128 "
                "elsewhere; --batch N sets the first ones of a SavedModel's inputs."
            )
        )
    if audit.obstacles:
        parts.append(_obstacles(audit))
    return Padding(Group(*parts), (0, 0, 1, 0))


def verdict(audit: Audit) -> str:
    """Return one line: whether 16 bits pay for a graph on its device."""
    plan = audit.plan
    pays = audit.ratio >= _PAYS and not plan.is_empty
    answer = "pays" if pays else "does not pay"
    return f"{audit.graph}: {plan.low_dtype} {answer} on {audit.device}"


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


def _obstacles(audit: Audit) -> Table:
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
    for obstacle in audit.obstacles:
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
