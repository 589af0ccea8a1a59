"""The verdict on a graph's numbers, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_amp.tools.verify.verification import TensorCheck, Verdict

if TYPE_CHECKING:
    from tf_amp.tools.verify.verification import Verification


def words_of(found: Verification) -> str:
    """Return one or two sentences that say what holds, and what does not."""
    if found.low_operations == 0:
        return "The plan changes nothing here, so there is nothing to verify."
    if not found.checks:
        return "Nothing that the graph returns or updates could be compared."
    if found.ok:
        return _good(found)
    return f"{_bad(found)}{_cause(found)}"


def _good(found: Verification) -> str:
    noisy = _with(found, Verdict.NOISY)
    judged = len(found.checks) - len(_with(found, Verdict.INFORMATION))
    if not noisy:
        worst = max((c.mixed.relative for c in found.checks), default=0.0)
        return (
            f"The numbers hold: {judged} of {judged} tensors within the tolerance of "
            f"{found.tolerance:.2g}, the worst relative error is {worst:.2g}."
        )
    return (
        f"Not the plan's doing: {len(noisy)} of {judged} tensors are beyond the "
        f"tolerance of {found.tolerance:.2g}, but float32 moves them as far when its "
        f"inputs and weights are merely rounded to {found.low_dtype}, or when it is "
        "run again. The computation is ill-conditioned for these inputs."
    )


def _bad(found: Verification) -> str:
    failing = found.failing
    worst = failing[0]
    count = f"{len(failing)} of {len(found.checks)} tensors"
    if worst.mixed.non_finite:
        return (
            f"The numbers do not hold: {count} fail; {worst.kind} {worst.name!r} has "
            f"{worst.mixed.non_finite} elements that are finite in float32 only."
        )
    control = max(worst.noise.relative, worst.rounded.relative if worst.rounded else 0)
    return (
        f"The numbers do not hold: {count} beyond the tolerance of "
        f"{found.tolerance:.2g}; {worst.kind} {worst.name!r} is off by "
        f"{worst.mixed.relative:.2g}, where the controls move it by {control:.2g}."
    )


def _cause(found: Verification) -> str:
    if found.culprits is None:
        return ""
    if not found.culprits:
        return " No operation that could be kept in float32 fixes it."
    count = len(found.culprits)
    what = "1 operation" if count == 1 else f"{count} operations"
    return f" It holds with {what} in float32 (found in {found.tries} tries):"


def _with(found: Verification, verdict: Verdict) -> list[TensorCheck]:
    return [c for c in found.checks if found.verdict_on(c) is verdict]
