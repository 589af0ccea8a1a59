"""The plan: a dtype for every slot, with the reason and the cost terms.

It is data that sorts and filters itself, made by `coloring` and carried out by
`rewriting`. Tables, JSON and pages of it are made by `tf_amp.report`, which is loaded
when they are asked for.

A plan's nodes belong to layers: the name scopes of a graph. Gradients are traced under
the names of what they are the gradients of, behind a prefix, and so belong to the same
layer.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from grappler_pass.eligibility.exclusions import CALL_SCOPE, GRADIENT_SCOPE
from grappler_pass.eligibility.reasons import DECIDED, KEPT_FOR, LOW, cause_of
from grappler_pass.eligibility.reasons import Cause as Cause
from grappler_pass.eligibility.reasons import Reason as Reason
from grappler_pass.graph.type_slots import TypeSlot

if TYPE_CHECKING:
    from rich.console import Group

# What a row might have been in, where its neighbors have decided.
_OTHER_TYPES = {
    Cause.NEIGHBORS: "float32",
    Cause.MEMORY: "float32",
    Cause.CASTS: "16 bits",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """One row of a plan.

    Attributes:
      slot: what is decided.
      op: the node's op.
      dtype: "float32", "bfloat16", "float16" or "float64" after the rewrite.
      reason: why.
      seconds_float32: predicted seconds per step at float32 (0 unless the slot is the
        node's first: a node is priced once).
      seconds_low: the same at the low dtype; None where it was never an option.
      cast_seconds: predicted seconds of the casts in front of this node.
      other_seconds: predicted seconds per step that this slot alone, and what is tied
        to it, would take more in the other of the two types, with the casts that would
        come and go; None where there was no other.
      shape: of the slot's first port; None where unknown.
      source: where the price comes from: "learned" (from steps), "profile" or
        "roofline"; of two the less sure one.
      error: standard deviation of the price's logarithm: 0.1 is about 10 %.
      is_product: whether it is a matrix product or convolution that may be in 16 bits;
        at O3 whatever may be.
    """

    slot: TypeSlot
    op: str
    dtype: str
    reason: Reason
    seconds_float32: float = 0.0
    seconds_low: float | None = None
    cast_seconds: float = 0.0
    other_seconds: float | None = None
    shape: tuple[int | None, ...] | None = None
    source: str = ""
    error: float = 0.0
    is_product: bool = False

    @property
    def is_low(self) -> bool:
        """True if this plan moves the slot to 16 bits."""
        return self.reason.cause in LOW

    @property
    def why(self) -> str:
        """Return the reason as a sentence, with the figure that decided."""
        return self.reason.text(self.figure)

    @property
    def figure(self) -> str:
        """Return what decided in brackets, behind a space; "" where times show it."""
        cause, more = self.reason.cause, self.other_seconds
        other = _OTHER_TYPES.get(cause)
        if other is None or more is None:
            return ""
        # A cut is exact but for the rounding of its seconds.
        more = more if cause is Cause.MEMORY else max(more, 0.0)
        taken = "as long"
        if more:
            sign = "more" if more > 0.0 else "less"
            taken = f"{abs(more * _MILLI):.3g} ms {sign}"
        return f" ({other} here alone would take {taken}, casts included)"

    @property
    def gain_seconds(self) -> float:
        """Seconds saved per step by this row; negative where 16 bits cost."""
        if not self.is_low or self.seconds_low is None:
            return 0.0
        return self.seconds_float32 - self.seconds_low - self.cast_seconds

    def times(self, runs: float) -> Decision:
        """Return the row of a graph that runs so often in each step."""
        low, other = self.seconds_low, self.other_seconds
        return dataclasses.replace(
            self,
            seconds_float32=runs * self.seconds_float32,
            seconds_low=None if low is None else runs * low,
            cast_seconds=runs * self.cast_seconds,
            other_seconds=None if other is None else runs * other,
        )


# Plans that were stored earlier have no reasons for fusions.
_FUSED = Reason(Cause.FUSED)


@dataclasses.dataclass(frozen=True, slots=True)
class Fusion:
    """A fusion.

    Attributes:
      rule: its name, as in `fusions.RULES`.
      node: that it begins with.
      seconds: predicted to be saved per step; 0 where nothing is, or not surely.
      reason: why it is done, or is not.
    """

    rule: str
    node: str
    seconds: float
    reason: Reason = _FUSED


_MILLI = 1e3
_MEBI = 2**20
# A plan that may be slower, or faster by more than this, is a guess.
_WIDE = 2.0
# From what share of the bytes on weights are named.
_NAMED_SHARE = 0.01
# Of the time, from what on a summary says what it is kept for.
_LEAST_SHARE = 0.005
# What is printed as 1.01 times as fast, or more.
_GAIN = 1.005
_WORDS_OF_CAUSE = {c: words for words, causes in KEPT_FOR.items() for c in causes}


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """A dtype for every floating slot of one graph.

    Attributes:
      decisions: one per slot, in the graph's node order unless sorted.
      low_dtype: "bfloat16" or "float16".
      opt_level: "O0" to "O3".
      graph: a human-readable name for the graph.
      profile: name of the device profile that priced it.
      seconds_before: predicted seconds per step of the graph as it was traced, in
        float32, the executor's included.
      seconds_after: predicted seconds per step under this plan, casts included.
      call_seconds: what starting the graph takes, whatever it computes; part of both.
      casts: casts inserted (a tensor cast for several readers counts once).
      casts_removed: casts of the given graph that were absorbed.
      gain_error: standard deviation of the gain in seconds per step; 0 if not known.
      low_speedup: predicted speed-up of its types without its fusions; where all types
        stay float32, of those with 16 bits that were looked at. 0 if not known.
      peak_bytes_before: predicted to be held at once in float32; 0 if not known.
      peak_bytes_after: the same under this plan.
      held_bytes: of either, variables, inputs and constants.
      weight_bytes_after: of the second, copies of weights in 16 bits.
      recomputed: operations that run again so that the step holds less.
      started_before: ops that a step starts in the graph as it arrived; 0 if they were
        not counted.
      started_after: the same under this plan, with shared scalars computed once.
      selected_from: the summary of the plan whose rows these are a selection of.
      fusions: fusions, of which the rows are the result.
      traced_fusions: those that the graph was traced with, and scalars that are
        computed once; they are there whether or not this plan is applied, and so
        neither of the predicted times has what they save.
      declined_fusions: those that could be done and are not.
      outcome: what decides, or has decided, whether it is applied; "" where that is
        its predicted gain alone.
      unchecked: which of its 16-bit kernels have not been checked; "" where all have.
      host_bound: that starting its ops bounds a step; "" where it does not.
      compiled_step: what a step would take at most if XLA compiled it, and how to do
        so; "" where that is not worth trying.
      guessed: which sizes its prices are guesses for, and which device was not
        measured; "" where all are known.
    """

    JSON_PROPERTIES: ClassVar = ("seconds_float32", "predicted_speedup")

    decisions: tuple[Decision, ...]
    low_dtype: str
    opt_level: str = "O1"
    graph: str = ""
    profile: str = ""
    seconds_before: float = 0.0
    seconds_after: float = 0.0
    call_seconds: float = 0.0
    casts: int = 0
    casts_removed: int = 0
    gain_error: float = 0.0
    low_speedup: float = 0.0
    peak_bytes_before: int = 0
    peak_bytes_after: int = 0
    held_bytes: int = 0
    weight_bytes_after: int = 0
    recomputed: int = 0
    started_before: float = 0.0
    started_after: float = 0.0
    selected_from: str = ""
    fusions: tuple[Fusion, ...] = ()
    traced_fusions: tuple[Fusion, ...] = ()
    declined_fusions: tuple[Fusion, ...] = ()
    outcome: str = ""
    unchecked: str = ""
    host_bound: str = ""
    compiled_step: str = ""
    guessed: str = ""

    @property
    def all_fusions(self) -> tuple[Fusion, ...]:
        """Return those of this plan, then those of the trace, then what is not done."""
        return (*self.fusions, *self.traced_fusions, *self.declined_fusions)

    @property
    def is_empty(self) -> bool:
        """True if the graph stays in float32 as it was traced, or shares scalars."""
        return not self.fusions and not any(row.is_low for row in self.decisions)

    @property
    def is_forgone(self) -> bool:
        """True if nothing could have been in 16 bits, whatever it cost."""
        return not any(row.reason.cause in DECIDED for row in self.decisions)

    @property
    def seconds_float32(self) -> float:
        """Predicted seconds per step in float32 without tf-amp; 0 if not known."""
        saved = sum(fusion.seconds for fusion in self.traced_fusions)
        return self.seconds_before + saved if self.seconds_before else 0.0

    @property
    def seconds_fused(self) -> float:
        """Predicted seconds per step in float32 with fusions; 0 if not known."""
        saved = sum(fusion.seconds for fusion in self.fusions)
        return self.seconds_before - saved if self.seconds_before else 0.0

    @property
    def predicted_speedup(self) -> float:
        """Speed-up over float32 without tf-amp; 1.0 where nothing is known."""
        return self.seconds_float32 / self.seconds_after if self.seconds_after else 1.0

    @property
    def rewrite_speedup(self) -> float:
        """Speed-up over the graph as it was traced, which its steps are compared with.

        1.0 where nothing is known.
        """
        return self.seconds_before / self.seconds_after if self.seconds_after else 1.0

    @property
    def compared_with(self) -> str:
        """Return what its steps are compared with, in words."""
        return "float32 with the same fusions" if self._is_traced else "float32"

    @property
    def _is_traced(self) -> bool:
        """Whether the graph was traced with fusions that save anything."""
        saved = self.seconds_float32 - self.seconds_before
        return saved > _LEAST_SHARE * self.seconds_before

    def in_all(self, ratio: float) -> str:
        """Say what a measured speed-up comes to with the fusions of the trace.

        These save the predicted time; "" where there are none.
        """
        if not self._is_traced:
            return ""
        ratio *= self.seconds_float32 / self.seconds_before
        return f", so about {ratio:.2f} times as fast as float32 without tf-amp"

    def sorted_by_value(self) -> Plan:
        """Return the plan with the most valuable decisions first."""
        ranked = sorted(
            self.decisions, key=lambda d: (-d.gain_seconds, -d.seconds_float32)
        )
        return dataclasses.replace(self, decisions=tuple(ranked))

    @property
    def speedup_text(self) -> str:
        """Return the predicted speed-up, and between what it probably is."""
        return ", ".join(
            filter(None, (f"{self.predicted_speedup:.2f}x", self.speedup_range))
        )

    @property
    def speedup_range(self) -> str:
        """Say what the speed-up probably is; "" where errors are not known.

        Errors are of logarithms, so that twice as fast is as far off as half. That of
        what fusions save is as large as the saving: so far off was the mean of six
        training steps in benchmarks/RESULTS.md, of which the column "fused float32"
        has the measured gains.
        """
        if self.gain_error <= 0.0 or self.seconds_after <= 0.0:
            return ""
        fusions = (*self.fusions, *self.traced_fusions)
        saved = sum(fusion.seconds for fusion in fusions) / self.seconds_float32
        factor = 1.0 + math.hypot(self.gain_error / self.seconds_after, saved)
        least, most = self.predicted_speedup / factor, self.predicted_speedup * factor
        if least < 1.0 and most > _WIDE:
            return "not known before it runs"
        return f"between {_times(least)} and {_times(most)}"

    def filter(
        self, *, op: str | None = None, reason: Cause | str | None = None
    ) -> Plan:
        """Return the plan with only the rows of this op and this cause.

        Args:
          op: an op's name, as in the graph.
          reason: a `Cause`, or its name in any case ("deny", "DENY").

        Raises:
          ValueError: there is no such cause.
        """
        rows: Iterable[Decision] = self.decisions
        if op is not None:
            rows = (d for d in rows if d.op == op)
        if reason is not None:
            cause = cause_of(reason)
            rows = (d for d in rows if d.reason.cause is cause)
        return self._select(tuple(rows))

    def top(self, count: int | None) -> Plan:
        """Return the plan with its `count` most valuable rows; None: with all."""
        return self._select(self.sorted_by_value().decisions[:count])

    def _select(self, rows: tuple[Decision, ...]) -> Plan:
        return dataclasses.replace(self, decisions=rows, selected_from=self.summary())

    def by_layer(self) -> tuple[LayerTimes, ...]:
        """Return the times of each layer, forward and backward, the slowest first."""
        return times_by_layer(self.decisions)

    @property
    def compiling(self) -> str:
        """Return what bounds a step and what XLA would take for it; "" for nothing."""
        return "; ".join(filter(None, (self.host_bound, self.compiled_step)))

    def verdict(self) -> str:
        """Return `summary`, and which sizes it is a guess for."""
        return f"{self.summary()} {self.guessed}" if self.guessed else self.summary()

    def summary(self) -> str:
        """Return one line: the time in 16 bits, the expected gain, what is float32.

        A selection of rows keeps the line of the whole plan.
        """
        if self.selected_from:
            return self.selected_from
        nodes = planned_nodes(self.decisions)
        fused = len(self.fusions) + len(self.traced_fusions)
        fusions = f", with {fused} fusion{'s'[: fused != 1]}" if fused else ""
        kept, again = _kept_for(nodes), ""
        if self.recomputed:
            ending = "s"[: self.recomputed != 1]
            again = f"{self.recomputed} operation{ending} run again to hold less"
        return (
            f"{self.graph or 'graph'}: {self._types_text(nodes)}{fusions}. "
            f"{self._time_text()}{self._memory_text()}."
            f"{kept and f' Why float32: {kept}.'}"
            f"{_sentence(again)}{_sentence(self.compiling)}"
            f"{_sentence(self.outcome)}{_sentence(self.unchecked)}"
        )

    def details(self) -> str:
        """Return one line for developers: counts of attributes, casts and causes."""
        low = sum(d.is_low for d in self.decisions)
        causes = Counter(
            d.reason.cause.name.lower() for d in self.decisions if not d.is_low
        )
        kept = ", ".join(f"{name} {n}" for name, n in causes.most_common(3))
        rules = Counter(each.rule for each in (*self.fusions, *self.traced_fusions))
        fused = ", ".join(f"{rule} {count}" for rule, count in rules.items())
        return (
            f"{self.graph or 'graph'}: {low} of {len(self.decisions)} float type "
            f"attributes to {self.low_dtype} ({self.opt_level}, "
            f"{self.profile or 'no profile'}), {self.casts} casts added, "
            f"{self.casts_removed} removed; predicted step "
            f"{self.seconds_float32 * _MILLI:.3g} -> {self.seconds_after * _MILLI:.3g} "
            f"ms ({self.speedup_text}){self._started_text()}; "
            f"kept: {kept or 'nothing'}"
            f"{fused and f'; fused: {fused}'}"
            f"{self.outcome and f'; {self.outcome}'}"
            f"{self.unchecked and f'; {self.unchecked}'}"
        )

    def _started_text(self) -> str:
        if not self.started_before:
            return ""
        return f", {self.started_before:.0f} -> {self.started_after:.0f} started ops"

    @property
    def low_share(self) -> float | None:
        """Of the predicted time of its operations that in 16 bits; None: not known."""
        nodes = planned_nodes(self.decisions)
        seconds = sum(node.seconds for node in nodes)
        low = sum(node.seconds for node in nodes if node.main.is_low)
        return low / seconds if seconds else None

    def _types_text(self, nodes: tuple[PlannedNode, ...]) -> str:
        low = sum(node.main.is_low for node in nodes)
        if not low:
            return "it stays float32"
        if self.low_share is None:
            return f"{low} of {len(nodes)} operations are in {self.low_dtype}"
        return f"{self.low_share:.0%} of the time is in {self.low_dtype}"

    def _time_text(self) -> str:
        if not self.seconds_before:
            return "Its time is not known"
        device = f" on {self.profile}" if self.profile else ""
        before, after = self.seconds_float32 * _MILLI, self.seconds_after * _MILLI
        text = f"A step is expected to take {after:.3g} ms{device}"
        if self.is_empty and self.compared_with == "float32":
            return text
        alone = self.seconds_float32 / self.seconds_fused
        is_mixed = any(row.is_low for row in self.decisions)
        fused = (
            f"; with fusions alone {alone:.2f}x" if alone > _GAIN and is_mixed else ""
        )
        return f"{text} instead of {before:.3g} ms ({self.speedup_text}{fused})"

    def _memory_text(self) -> str:
        if not self.peak_bytes_before:
            return ""
        before, after, held, copies = (
            f"{count:.3g}" if count < 1000 else f"{count:.0f}"
            for count in (
                self.peak_bytes_before / _MEBI,
                self.peak_bytes_after / _MEBI,
                self.held_bytes / _MEBI,
                self.weight_bytes_after / _MEBI,
            )
        )
        parts = f"{held} of it variables and inputs"
        if self.weight_bytes_after > _NAMED_SHARE * self.peak_bytes_after:
            parts += f", {copies} weights in {self.low_dtype}"
        instead = f" instead of {before} MiB" if before != after else ""
        return f", and {after} MiB of memory ({parts}){instead}"

    def __str__(self) -> str:
        """Print as a table, summary first."""
        from tf_amp.report import plans

        return plans.text_of(self)

    def __repr__(self) -> str:
        """Return one line, for lists and debuggers; `print` shows all."""
        return f"<Plan {self.summary()}>"

    def __rich__(self) -> Group:
        """Show in a terminal, folded to its width."""
        from tf_amp.report import plans

        return plans.tables_of(self)

    def _repr_html_(self) -> str:
        """Show at the end of a cell of a notebook."""
        from tf_amp.report.display import html_from

        return html_from(self)

    def to_json(self) -> str:
        """Return JSON that `from_json` loads back equal."""
        from tf_amp.report import codec

        return codec.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Load what `to_json` wrote."""
        from tf_amp.report import codec

        return codec.from_json(cls, text)

    def to_html(self) -> str:
        """Return a page with charts of the plan, which opens without a network.

        Raises:
          MissingExtraError: Jinja2 or plotly is not installed.
        """
        from tf_amp.report import plan_page

        return plan_page.page_of(self)


def _kept_for(nodes: Iterable[PlannedNode]) -> str:
    """Say what share of the time is in float32 for what, the largest first."""
    seconds: dict[str, float] = {}
    total = 0.0
    for node in nodes:
        total += node.seconds
        words = _WORDS_OF_CAUSE.get(node.main.reason.cause)
        if words and node.main.dtype == "float32":
            seconds[words] = seconds.get(words, 0.0) + node.seconds
    ranked = sorted(seconds, key=lambda words: -seconds[words])[:3]
    shown = [words for words in ranked if seconds[words] > _LEAST_SHARE * total]
    return ", ".join(f"{seconds[words] / total:.0%} {words}" for words in shown)


def _sentence(text: str) -> str:
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 10.0 else f"{ratio:.0f}x"


def shape_text(shape: tuple[int | None, ...] | None) -> str:
    """Return sizes with an x between them; "?" is what is not known."""
    if shape is None:
        return "?"
    return "x".join("?" if dim is None else str(dim) for dim in shape) or "scalar"


# Of functions that were inlined and of what was folded, then of gradients by tapes and
# by tf.gradients.
_PREFIX = re.compile(
    rf"(?:ConstantFolding/|{CALL_SCOPE})*(?P<gradients>{GRADIENT_SCOPE})?"
)


class PlannedNode(NamedTuple):
    """All rows of a plan for one node.

    Attributes:
      prefix: of its name, that says nothing of the model.
      layer: the scopes of its layer, outermost first.
      label: the rest of its name.
      main: the row that stands for it: that of a slot that moves to 16 bits, if any.
      seconds_float32: predicted seconds per step in float32.
      seconds_low: the same at the low dtype; None where it was never an option.
      cast_seconds: predicted seconds of the casts in front of it.
      seconds: predicted seconds per step under the plan, with these casts.
    """

    prefix: str
    layer: tuple[str, ...]
    label: str
    main: Decision
    seconds_float32: float
    seconds_low: float | None
    cast_seconds: float
    seconds: float

    @property
    def name(self) -> str:
        """Return its name in the graph."""
        return self.prefix + "/".join((*self.layer, self.label))


class LayerTimes(NamedTuple):
    """What one layer takes, forward and backward.

    Attributes:
      name: its name scope; "" for what is in none.
      nodes: how many nodes it has.
      low_nodes: how many of them compute in 16 bits.
      seconds_float32: predicted seconds per step in float32.
      seconds: predicted seconds per step under the plan, casts included.
      low_seconds: of `seconds` those of nodes in 16 bits.
    """

    name: str
    nodes: int
    low_nodes: int
    seconds_float32: float
    seconds: float
    low_seconds: float


def planned_nodes(decisions: Iterable[Decision]) -> tuple[PlannedNode, ...]:
    """Return the nodes of a plan, in its order."""
    rows: dict[str, list[Decision]] = {}
    for decision in decisions:
        rows.setdefault(decision.slot.node, []).append(decision)
    # Scopes that hold more than gradients, without their prefix.
    scopes: set[str] = set()
    for name in rows:
        _, is_gradient, rest = _split(name)
        while not is_gradient and "/" in rest:
            rest = rest.rpartition("/")[0]
            if rest in scopes:
                break
            scopes.add(rest)
    return tuple(_node(name, own, scopes) for name, own in rows.items())


def times_by_layer(decisions: Iterable[Decision]) -> tuple[LayerTimes, ...]:
    """Return what each layer takes, the slowest in float32 first."""
    layers: dict[str, list[PlannedNode]] = {}
    for node in planned_nodes(decisions):
        layers.setdefault("/".join(node.layer), []).append(node)
    found = (
        LayerTimes(
            name,
            nodes=len(nodes),
            low_nodes=sum(node.main.is_low for node in nodes),
            seconds_float32=sum(node.seconds_float32 for node in nodes),
            seconds=sum(node.seconds for node in nodes),
            low_seconds=sum(node.seconds for node in nodes if node.main.is_low),
        )
        for name, nodes in layers.items()
    )
    return tuple(sorted(found, key=lambda layer: -layer.seconds_float32))


def _node(name: str, rows: list[Decision], scopes: set[str]) -> PlannedNode:
    prefix, is_gradient, rest = _split(name)
    scope, _, label = rest.rpartition("/")
    # A gradient's scope ends with the name of what it is the gradient of.
    while is_gradient and scope and scope not in scopes:
        scope, _, last = scope.rpartition("/")
        label = f"{last}/{label}"
    # A node is priced once, in the row of its first slot.
    priced = rows[0]
    main = next((row for row in rows if row.is_low), priced)
    is_faster = main.is_low and priced.seconds_low is not None
    own = priced.seconds_low if is_faster else priced.seconds_float32
    return PlannedNode(
        prefix=prefix,
        layer=tuple(scope.split("/")) if scope else (),
        label=label,
        main=main,
        seconds_float32=priced.seconds_float32,
        seconds_low=priced.seconds_low,
        cast_seconds=priced.cast_seconds,
        seconds=(own or 0.0) + priced.cast_seconds,
    )


def _split(name: str) -> tuple[str, bool, str]:
    """Return the prefix of a name, whether it is of gradients, and the rest."""
    prefix = _PREFIX.match(name)
    assert prefix
    return prefix[0], bool(prefix["gradients"]), name[prefix.end() :]
