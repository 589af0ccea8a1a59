"""The numbers of a rewritten graph beside float32's, and how they are judged.

A tensor holds if its error keeps to the tolerance, or to a few times that of two
controls: float32 run once more, and float32 with its inputs and weights rounded to 16
bits. What these move as far is ill-conditioned, whatever the precision. Nor is a plan
blamed for what casts by hand, with nothing but products in 16 bits, move as far.

A sum that is zero in theory, such as the gradient of a bias in front of a
normalization, is what rounding leaves of it, in float32 too: its relative error says
nothing. Such a tensor is held against the size of the others of its layer.
"""

from __future__ import annotations

import dataclasses
import enum
import pathlib
from collections.abc import Iterable, Iterator
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text

from grappler_pass.planning.plan import shape_text
from tf_amp.report.codec import Stored
from tf_amp.report.counts import counted
from tf_amp.report.display import (
    Display,
    FittedTable,
    bare_table,
    filled,
    plain_text,
)
from tf_amp.report.files import write_whole

# Roundings of the weights are one kind among those that 16 bits bring; a chain of ops
# adds a few more to each.
CONTROL_FACTOR = 4.0
# Of the 16-bit type's own rounding.
_TOLERANCE_IN_EPSILONS = 8.0
_EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# The yardstick of the tests: so much farther off than by hand a result may be.
_BY_HAND_FACTOR = 3.0
# Of a tensor that rounded inputs move by so much of itself, float32 knows nothing.
_UNKNOWN = 0.5

OUTPUT, GRADIENT = "output", "gradient"
_NUMBERS = ("largest error", "relative", "cosine", "not finite", "noise", "rounded")
_TITLES = ("tensor", "kind", "shape", *_NUMBERS, "verdict")
_ELSEWHERE = (
    " Kernels that are fused while a graph is traced are in it already: `tf-amp bench` "
    "compares losses with those of the program without tf-amp."
)
# What a narrow terminal leaves out, first what matters least.
_SPARE = (
    "cosine",
    "shape",
    "kind",
    "largest error",
    "rounded",
    "not finite",
    "noise",
    "relative",
)


@dataclasses.dataclass(frozen=True)
class Culprit:
    """An operation that a tolerance does not allow in 16 bits.

    Attributes:
      node: its name in the graph.
      op: what it computes, such as "MatMul".
      layer: the name scope around it, which Keras makes of its layers' names; of a
        gradient, that of the operation it belongs to.
      pattern: regular expression that excludes it and no other.
    """

    node: str
    op: str
    layer: str
    pattern: str

    def __str__(self) -> str:
        """Return one line."""
        where = f" in layer {self.layer}" if self.layer else ""
        return f"{self.node} ({self.op}){where}"


class Judgement(enum.Enum):
    """How a tensor is judged, the worst last; the value is what the table prints."""

    INFORMATION = "not judged"
    NOTHING = "nothing to judge"
    HOLDS = "within tolerance"
    NOISY = "as far off in float32"
    BY_HAND = "as far off by hand"
    BEYOND = "beyond tolerance"
    NOT_FINITE = "not finite"


@dataclasses.dataclass(frozen=True)
class Difference:
    """A tensor beside the same one in float32.

    Attributes:
      largest: absolute difference of any two elements.
      relative: norm of the difference over the norm in float32; 0 where they are equal.
      cosine: of the angle between both; 1 where they are equal.
      non_finite: elements that are infinite or NaN while they are not so in float32.
    """

    largest: float = 0.0
    relative: float = 0.0
    cosine: float = 1.0
    non_finite: int = 0


@dataclasses.dataclass(frozen=True)
class TensorCheck:
    """One tensor in mixed precision, and in the controls, beside float32.

    Attributes:
      name: of the output, or of the variable that a gradient is for.
      kind: "output" or "gradient".
      dtype: of the tensor in float32's run.
      shape: of it.
      mixed: difference in mixed precision.
      noise: difference in a second run of float32.
      rounded: difference in float32 with inputs and weights rounded to 16 bits; None
        where that was not run.
      by_hand: difference with nothing but products in 16 bits; None where all holds
        without that.
      non_finite: elements that are not finite in float32 either.
      scale: root of the mean square in float32.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    mixed: Difference
    noise: Difference = dataclasses.field(default_factory=Difference)
    rounded: Difference | None = None
    by_hand: Difference | None = None
    non_finite: int = 0
    scale: float = 0.0


@dataclasses.dataclass(frozen=True, repr=False)
class Verification(Display, Stored):
    """All tensors of a graph, and whether they hold.

    Attributes:
      graph: its name, human-readable.
      checks: outputs, then gradients.
      low_dtype: "bfloat16" or "float16".
      tolerance: for relative errors.
      plan: one line on what was rewritten.
      low_operations: how many operations ran in 16 bits; None where unknown.
      is_changed: whether the plan changes the graph, by types or by fusions.
      data: what was run on, in words.
      culprits: operations that must be float32 for the tolerance to hold; None where
        they were not looked for.
      tries: rewrites that were run to find these.
      excluded: regular expressions for what was to stay float32 already.
      unmatched: those of them that match no operation of the graph.
      fused: how many kernels were fused while the graph was traced; both runs have
        them.
    """

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("ok", "verdict")

    graph: str
    checks: tuple[TensorCheck, ...]
    low_dtype: str
    tolerance: float
    plan: str = ""
    low_operations: int | None = None
    is_changed: bool = True
    data: str = ""
    culprits: tuple[Culprit, ...] | None = None
    tries: int = 0
    excluded: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    fused: int = 0

    def verdict_on(self, check: TensorCheck) -> Judgement:
        """Judge by the relative error; of integers and text nothing is asked.

        Where rounding inputs and weights moves a tensor by no more than roundings do,
        it excuses nothing: a strict tolerance is then kept to.
        """
        if not check.dtype.startswith(("float", "bfloat")):
            return Judgement.INFORMATION
        noise, rounded = check.noise, check.rounded or Difference()
        if check.mixed.non_finite > max(noise.non_finite, rounded.non_finite):
            return Judgement.NOT_FINITE
        if check.mixed.relative <= self.tolerance:
            return Judgement.HOLDS
        if self._is_next_to_nothing(check):
            return Judgement.NOTHING
        floor = default_tolerance(self.low_dtype) / CONTROL_FACTOR
        moved = rounded.relative if rounded.relative > floor else 0.0
        most = CONTROL_FACTOR * max(noise.relative, moved)
        if check.mixed.relative <= most:
            return Judgement.NOISY
        return Judgement.BY_HAND if self._is_so_by_hand(check) else Judgement.BEYOND

    def _is_so_by_hand(self, check: TensorCheck) -> bool:
        """Tell whether casts by hand move a tensor as far.

        They excuse gradients and updates, which bear noise. They excuse no result that
        the graph returns, nothing that becomes zero (its cosine is 0), and no error
        that a strict tolerance alone forbids.
        """
        by_hand, error = check.by_hand or Difference(), check.mixed.relative
        is_noise = check.kind != OUTPUT and check.mixed.cosine != 0.0
        is_noise &= error > default_tolerance(self.low_dtype) and not by_hand.non_finite
        return is_noise and error <= _BY_HAND_FACTOR * by_hand.relative

    def _is_next_to_nothing(self, check: TensorCheck) -> bool:
        """Tell whether a tensor and its error are rounding beside its neighbors.

        Float32 does not know its value either: it is zero there, or rounded inputs
        move it by its own size. And the error keeps to the tolerance beside the largest
        tensor of its layer; a gradient that is alone, beside the largest of all.
        """
        rounded = check.rounded or Difference()
        if check.scale > 0.0 and rounded.relative < _UNKNOWN:
            return False
        others = [
            c for c in self.checks if c.kind == check.kind and c.name != check.name
        ]
        layer = check.name.rpartition("/")[0]
        beside = [c for c in others if layer and c.name.rpartition("/")[0] == layer]
        if not beside and check.kind == GRADIENT:
            beside = others
        scale_beside = max((c.scale for c in beside), default=0.0)
        most = max(check.mixed.largest, check.scale, rounded.largest)
        return most < self.tolerance * scale_beside

    @property
    def ok(self) -> bool:
        """True if no tensor is farther off than it may be."""
        return not self.failing

    @property
    def failing(self) -> tuple[TensorCheck, ...]:
        """The tensors that do not hold, the worst first."""
        bad = (Judgement.BEYOND, Judgement.NOT_FINITE)
        failing = (c for c in self.checks if self.verdict_on(c) in bad)
        return tuple(
            sorted(failing, key=lambda c: (-c.mixed.non_finite, -c.mixed.relative))
        )

    @property
    def verdict(self) -> str:
        """One or two sentences that say what holds, and what does not."""
        if not self.is_changed:
            said = "The plan changes nothing here, so there is nothing to verify."
            return f"{said}{_ELSEWHERE * bool(self.fused)}"
        if not self.checks:
            return "Nothing that the graph returns or updates could be compared."
        if not (failing := self.failing):
            return _good(self)
        worst = failing[0]
        count = f"{len(failing)} of {len(self.checks)} tensors"
        if worst.mixed.non_finite:
            text = (
                f"{count} fail; {worst.kind} {worst.name!r} has "
                f"{worst.mixed.non_finite} elements that are finite in float32 only."
            )
        else:
            rounded = worst.rounded or Difference()
            control = max(worst.noise.relative, rounded.relative)
            text = (
                f"{count} beyond the tolerance of {self.tolerance:.2g}; {worst.kind} "
                f"{worst.name!r} is off by {worst.mixed.relative:.2g}, where the "
                f"controls move it by {control:.2g}"
            )
            if worst.by_hand is not None:
                text += f", and casts by hand by {worst.by_hand.relative:.2g}"
            text += "."
        if self.culprits:
            what = counted(len(self.culprits), "operation")
            text += f" It holds with {what} in float32 (found in {self.tries} tries):"
        elif self.culprits is not None:
            text += " No operation that could be kept in float32 fixes it."
        return f"The numbers do not hold: {text}"

    def summary(self) -> str:
        """Return the graph's name, then the verdict."""
        return f"{self.graph or 'graph'}: {self.verdict}"

    def __str__(self) -> str:
        """Print as text, nothing cut off."""
        table = filled(bare_table(), _TITLES, self._rows(), numbers=_NUMBERS)
        return plain_text(self._around(table), self.TEXT_WIDTH)

    def __rich__(self) -> Group:
        """Show in a terminal."""
        rows = tuple(self._rows())
        table = FittedTable(_TITLES, rows, numbers=_NUMBERS, spare=_SPARE)
        return self._around(table)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the cells of each tensor, in the order of the titles."""
        for check in self.checks:
            mixed, rounded = check.mixed, check.rounded
            is_lost = mixed.non_finite > 0 and not mixed.largest
            yield (
                check.name,
                check.kind,
                shape_text(check.shape),
                "-" if is_lost else f"{mixed.largest:.2g}",
                "-" if is_lost else f"{mixed.relative:.2g}",
                "-" if is_lost else f"{mixed.cosine:.5f}",
                str(mixed.non_finite),
                f"{check.noise.relative:.2g}",
                "-" if rounded is None else f"{rounded.relative:.2g}",
                self.verdict_on(check).value,
            )

    def _around(self, table: Table | FittedTable) -> Group:
        """Return headline, table, verdict and culprits."""
        plan = f": {self.plan}" if self.plan else ""
        data = f"\nrun on {self.data}" if self.data else ""
        fused = (
            f"\nBoth runs have {counted(self.fused, 'kernel')} that tf-amp fused while "
            "the graph was traced."
        )
        return Group(
            Text(f"{self.graph or 'graph'}{plan}{data}{fused * bool(self.fused)}"),
            *([table] if self.checks else []),
            Text(self.verdict),
            *(Text(f"  {culprit}") for culprit in self.culprits or ()),
        )


def default_tolerance(low_dtype: str) -> float:
    """Return the relative error that is allowed unless the user says otherwise."""
    return _TOLERANCE_IN_EPSILONS * _EPSILON[low_dtype]


def _good(verification: Verification) -> str:
    groups: dict[Judgement, list[TensorCheck]] = {each: [] for each in Judgement}
    for check in verification.checks:
        groups[verification.verdict_on(check)].append(check)
    noisy, nothing = groups[Judgement.NOISY], groups[Judgement.NOTHING]
    holding, by_hand = groups[Judgement.HOLDS], groups[Judgement.BY_HAND]
    judged = len(noisy) + len(holding) + len(by_hand)
    tolerance = verification.tolerance
    text = (
        f"The numbers hold as far as float32's own do: {len(noisy)} of {judged} "
        f"tensors are beyond the tolerance of {tolerance:.2g}, but float32 moves them "
        "as far when its inputs and weights are merely rounded to "
        f"{verification.low_dtype}, or when it is run again. The computation is "
        "ill-conditioned for these inputs."
    )
    if by_hand and not noisy:
        text = (
            f"The numbers hold as far as by hand: {len(by_hand)} of {judged} tensors "
            f"are beyond the tolerance of {tolerance:.2g}."
        )
    elif not noisy:
        worst = max((c.mixed.relative for c in holding), default=0.0)
        text = (
            f"The numbers hold: {judged} of {judged} tensors within the tolerance of "
            f"{tolerance:.2g}, the worst relative error is {worst:.2g}."
        )
    if by_hand:
        off = max(by_hand, key=lambda c: c.mixed.relative)
        moved = (off.by_hand or Difference()).relative
        text += (
            f" {off.kind.capitalize()} {off.name!r} is off by "
            f"{off.mixed.relative:.2g}. Casts by hand move it as far: {moved:.2g}."
        )
    if nothing:
        what = counted(len(nothing), "tensor is", "tensors are")
        text += (
            f" {what} not judged, such as {nothing[0].kind} {nothing[0].name!r}: in "
            "float32, too, almost nothing is left of it beside the layer's others."
        )
    return text


def write_exclude_list(
    path: pathlib.Path,
    culprits: Iterable[Culprit],
    heading: str = "",
    in_force: Iterable[str] = (),
) -> None:
    """Write the patterns one per line, each behind what it stands for.

    `TF_AMP_EXCLUDE=@FILE` and `--exclude @FILE` read it. A list whose patterns were in
    force when the culprits were found is added to; any other is replaced by one that
    begins with the heading as a comment.
    """
    lines = [f"# {line}" for line in heading.splitlines()]
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        present = [line.strip() for line in text.splitlines()]
        patterns = {line for line in present if line and line[0] != "#"}
        if patterns and patterns <= set(in_force):
            lines = present
    for culprit in culprits:
        if culprit.pattern not in lines:
            lines += [f"# {culprit}", culprit.pattern]
    write_whole(path, ("\n".join(lines) + "\n").encode())
