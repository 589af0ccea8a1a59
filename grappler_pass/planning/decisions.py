"""Write down what was decided, and whether the rewritten graph is the one to run.

A plan has one row per slot, with reason and cost terms.

A training that is to go on as if it had never stopped keeps the plan that it began
with: prices change from run to run, and with them plans.

Whether the rewritten graph is the one to run is decided last. What is known of it from
earlier runs counts first. Where that is uncertain the program's own steps are compared.
Until then, and where they cannot be, a plan is applied if its gain is sure by its
prices alone (`coloring.Gain`).

Of the most bytes of activations that are alive at once: a tensor lives from the node
that writes it to its last reader, in the order of the graph's view. Views share the
tensor they look at, an op that writes what it reads may reuse a tensor that has no
other reader, and a cast copies. Variables, constants and arguments are left out, and so
are constants that are cast beforehand; what is cast as the graph runs is not. A weight
is read, and so cast, as a step begins; what is kept between calls lives all the time. A
loop counts with one iteration, and with what its lists hold after all of them. Sizes
that are unknown are guessed as for prices. Not counted are what kernels need for
themselves, a variable's copy where it is written while its old value is still read, and
what the allocator does not fill.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from absl import logging
from tensorflow.core.framework.types_pb2 import DT_RESOURCE

from grappler_pass.costs.calls import (
    DTYPE_BYTES,
    UNKNOWN_BATCH,
    UNKNOWN_DIMENSION,
    TensorSpec,
)
from grappler_pass.costs.op_classes import ELEMENTWISE
from grappler_pass.eligibility.reads import is_foldable
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_table import INPUT_OPS
from grappler_pass.graph.shapes import Shape, known_shape
from grappler_pass.graph.type_slots import (
    DTYPE_NAMES,
    FLOAT32,
    NO_SLOT,
    SlotTable,
    dtype_name,
)
from grappler_pass.graph.view import Node, Port, Reader
from grappler_pass.planning.coloring import (
    FLOAT32_SIDE,
    problem_from_prices,
    seconds_of_flips,
)
from grappler_pass.planning.draft import (
    FORCED,
    PRICED,
    CastPlan,
    Conversion,
    Draft,
    NodePrices,
    Outcome,
    Trial,
)
from grappler_pass.planning.plan import Cause, Decision, Plan, Reason, shape_text
from grappler_pass.planning.prices import CastPrice


def plan_from_draft(draft: Draft) -> Plan:
    """Return the plan of a draft whose slots are colored and casts are planned."""
    settings, prices, casts = draft.settings, draft.prices, draft.casts
    # Each cast is charged to the low node that it is made for: to the first reader on
    # the way down, to the producer on the way up.
    cast_seconds: defaultdict[int, float] = defaultdict(float)
    for conversion in (each for each in casts.conversions if each.is_cast):
        price = prices.casts.get(conversion.port, CastPrice())
        if conversion.target_dtype == FLOAT32:
            cast_seconds[conversion.port.node] += price.up
        else:
            cast_seconds[conversion.readers[0].node] += price.down
    call_seconds = seconds_before = seconds_after = 0.0
    before = after = Peak(0, 0)
    if prices is not None:
        call_seconds = settings.models["CPU"].profile.call_seconds
        low_nodes = draft.low_nodes
        seconds_before = draft.beside_nodes + sum(prices.float32)
        seconds_after = draft.beside_nodes + sum(
            (low if node in low_nodes and low is not None else float32)
            + cast_seconds[node]
            for node, (float32, low) in enumerate(
                zip(prices.float32, prices.low, strict=True)
            )
        )
        # What is fused is not in memory.
        if settings.predicts_memory and not settings.fuses:
            view = draft.view_of(draft.given)
            slots = SlotTable.from_view(view)
            low_slots = (False,) * len(slots.slots)
            given = dataclasses.replace(
                draft, view=view, slots=slots, low=low_slots, casts=CastPlan()
            )
            before, after = peak_of(given), peak_of(draft)
    # What its other type alone would take a variable more, with casts.
    variables, more = draft.constraints.variables, list[float]()
    if variables:
        colors = {variable: draft.low[slot] for slot, variable in variables.items()}
        more = seconds_of_flips(
            problem_from_prices(draft), [colors[v] for v in range(len(colors))]
        )
    others = {slot: more[variable] for slot, variable in variables.items()}
    return Plan(
        decisions=tuple(
            _decision(draft, slot, cast_seconds, others.get(slot))
            for slot in range(len(draft.slots.slots))
        ),
        low_dtype=settings.low_dtype,
        opt_level=settings.opt_level,
        graph=draft.name,
        profile=", ".join(sorted({m.profile.name for m in settings.models.values()})),
        seconds_before=seconds_before + sum(f.seconds for f in draft.fusions),
        seconds_after=seconds_after,
        call_seconds=call_seconds,
        # A low product whose results are float32 is cast up within its node.
        casts=sum(c.is_cast for c in casts.conversions)
        + sum(map(draft.slots.has_float32_results, draft.low_nodes)),
        casts_removed=len(casts.absorbed)
        + sum(c.is_identity for c in casts.conversions),
        gain_error=draft.gain_error,
        peak_bytes_before=before.size,
        peak_bytes_after=after.size,
        weight_bytes_after=after.weights,
        fusions=draft.fusions,
        traced_fusions=draft.traced_fusions,
        declined_fusions=draft.declined_fusions,
        guessed=_guessed(draft),
    )


def _guessed(draft: Draft) -> str:
    """Say which sizes are guesses, if a product is priced with an unknown one."""
    slots, view, shapes = draft.slots, draft.view, draft.shapes

    def is_open(shape: Shape | None) -> bool:
        return shape is None or None in shape

    products = (_shape(draft, slots.node_of[s], s) for s in draft.constraints.allow)
    if not any(map(is_open, products)):
        return ""
    names = [
        f"{node.name} {shape_text(shape)}"
        for node in view.nodes
        if node.op in INPUT_OPS and slots.output_dtype(node.index, 0) != DT_RESOURCE
        if is_open(shape := known_shape(shapes, view, Port(node.index, 0)))
    ]
    return (
        f"Sizes that are not known count as {UNKNOWN_BATCH} where they come first, as "
        f"{UNKNOWN_DIMENSION} elsewhere: {', '.join(names) or 'within the graph'}. "
        "--batch N sets the first ones of a SavedModel's inputs, a TensorSpec those of "
        "a function's."
    )


def _decision(
    draft: Draft,
    slot: int,
    cast_seconds_of: defaultdict[int, float],
    other_seconds: float | None,
) -> Decision:
    slots, prices = draft.slots, draft.prices
    node = slots.node_of[slot]
    float32, low = 0.0, None
    if prices is not None:
        float32, low = prices.float32[node], prices.low[node]
    saved = 0.0 if low is None else float32 - low
    # A node is priced once, in the row of its first slot.
    first = slots.slots_of[node][0] == slot
    priced = prices is not None and first
    cast_seconds = cast_seconds_of[node]
    reason = draft.constraints.reasons[slot]
    if draft.constraints.eligible[slot]:
        if not draft.low[slot]:
            cause = draft.fallback[slot] or Cause.COST
            if cause is Cause.COST and saved > 0.0:
                cause = Cause.CASTS
        elif draft.recalled is not None:
            cause = Cause.RESUMED_LOW
        elif draft.settings.opt_level in FORCED:
            cause = Cause.FORCED
        elif saved > cast_seconds:
            cause = Cause.GAIN
        else:
            is_held = other_seconds is not None and other_seconds > 0.0
            cause = Cause.NEIGHBORS if is_held else Cause.MEMORY
        reason = Reason(cause, reason.detail)
    own = DTYPE_NAMES[slots.dtypes[slot]]
    return Decision(
        slot=slots.slots[slot],
        op=draft.view.nodes[node].op,
        dtype=draft.settings.low_dtype if draft.low[slot] else own,
        reason=reason,
        seconds_float32=float32 if priced else 0.0,
        seconds_low=low if priced else None,
        cast_seconds=cast_seconds if first else 0.0,
        other_seconds=other_seconds,
        shape=_shape(draft, node, slot),
        source=prices.sources[node] if priced else "",
        error=max(prices.errors[node]) if priced else 0.0,
    )


def _shape(draft: Draft, node: int, slot: int) -> Shape | None:
    """Return the shape of the first port that the slot governs, outputs first."""
    slots = draft.slots
    made = (Port(node, output) for output in range(slots.output_count(node)))
    governed = (port for port in made if slots.output_slot(*port) == slot)
    read = (
        port
        for position, port in enumerate(draft.view.nodes[node].inputs)
        if slots.input_slot(node, position) == slot
    )
    port = next(itertools.chain(governed, read), None)
    return None if port is None else known_shape(draft.shapes, draft.view, port)


class UnaskedSteps:
    """Own steps that are not asked: they may yet find any plan faster."""

    def outcome(self, trial: Trial, decided: Callable[[bool], None]) -> Outcome:
        """Return that they are not."""
        return Outcome.UNASKED


def recall(draft: Draft) -> Draft:
    """Look the graph up; where prices decide nothing there is nothing to look up."""
    memory = draft.memory
    low = None if memory is None else memory.recall(draft)
    if low is None:
        return draft
    # Only eligible slots are low, and tied ones alike.
    variables, colors = draft.constraints.variables, {FLOAT32_SIDE: False}
    if (
        len(low) != len(draft.slots.slots)
        or any(low[slot] for slot in draft.written_slots)
        or any(
            colors.setdefault(variables.get(slot, FLOAT32_SIDE), is_low) != is_low
            for slot, is_low in enumerate(low)
        )
    ):
        logging.log_first_n(
            logging.WARNING,
            "The plan stored for graph %r does not fit it; it is planned anew.",
            1,
            draft.name,
        )
        return draft
    return dataclasses.replace(draft, recalled=low)


def keep(draft: Draft) -> Draft:
    """Have it remembered how a graph came out, where its costs decide."""
    if draft.memory is not None:
        draft.memory.keep(draft)
    return draft


def tried(draft: Draft) -> Draft:
    """Withdraw a plan whose graph is not known, or predicted, to be faster."""
    own_steps = draft.settings.own_steps
    if own_steps is None or draft.settings.opt_level != PRICED:
        return draft
    if draft.rewritten is draft.given or draft.recalled is not None:
        return draft
    planned = draft

    def decided(is_faster: bool) -> None:
        """Have remembered how the graph has come out in the end."""
        keep(planned if is_faster else withdrawn(planned, Cause.TRIAL))

    outcome = own_steps.outcome(trial_from_draft(draft), decided)
    causes = {Outcome.SLOWER: Cause.TRIAL, Outcome.WITHHELD: Cause.DOUBT}
    if not draft.is_sure:
        causes[Outcome.KERNEL_STATE] = Cause.KERNEL_STATE
        causes[Outcome.UNKNOWN] = Cause.MARGIN
    if outcome in causes:
        draft = withdrawn(draft, causes[outcome])
    elif outcome is Outcome.UNKNOWN and draft.is_certain:
        return draft
    plan = dataclasses.replace(draft.plan, outcome=outcome.value)
    is_open = outcome in (Outcome.OPEN, Outcome.WITHHELD)
    return dataclasses.replace(draft, plan=plan, is_open=is_open)


def trial_from_draft(draft: Draft) -> Trial:
    """Return the graphs of a draft that has passed all stages before this one."""
    plan, settings = draft.plan, draft.settings
    prices: dict[str, NodePrices] = {}
    # Of what a compiler fuses, nothing is known node by node.
    for i in sorted(() if settings.fuses else draft.low_nodes):
        node, call = draft.view.nodes[i], draft.prices.calls[i]
        if call is None:
            continue
        model = settings.models.get(node.device_type) or settings.models["CPU"]
        float32 = model.expected(call, "float32")
        low = model.expected(call, settings.low_dtype)
        if float32 is not None and low is not None:
            key = f"{node.name}:{node.op}"
            prices[key] = NodePrices(node.device_type, float32, low)
    return Trial(
        before=draft.given,
        after=draft.rewritten,
        item=draft.item,
        shapes=draft.shapes,
        seconds_before=plan.seconds_before,
        seconds_after=plan.seconds_after,
        name=draft.name,
        peak_bytes=max(plan.peak_bytes_before, plan.peak_bytes_after),
        is_certain=draft.is_certain,
        is_sure=draft.is_sure,
        prices=prices,
    )


def withdrawn(draft: Draft, reason: Cause) -> Draft:
    """Return the draft with everything in float32 and the graph as it was given."""
    fallback = tuple(
        reason if is_low else cause
        for is_low, cause in zip(draft.low, draft.fallback, strict=True)
    )
    declined = (
        dataclasses.replace(each, reason=Reason(reason)) for each in draft.fusions
    )
    draft = dataclasses.replace(
        draft,
        low=(False,) * len(draft.low),
        fallback=fallback,
        gain_error=0.0,
        casts=CastPlan(),
        rewritten=draft.given,
        fusions=(),
        declined_fusions=(*draft.declined_fusions, *declined),
    )
    return dataclasses.replace(draft, plan=plan_from_draft(draft))


_WEIGHTS = (
    table.CONSTANT_OPS | table.INPUT_OPS | table.VARIABLE_OPS | {"ReadVariableOp"}
)
_READS = table.REF_VARIABLE_OPS | {"ReadVariableOp"}
# What these write is what they read, or a part of it: output i of input i for
# IdentityN, else of the first.
_VIEWS = (
    table.ALIASING_OPS
    | table.EXCHANGE_OPS
    | table.POPPED_OUTPUT.keys()
    | {"TensorArrayGradV3", "TensorListPushBack", "TensorListSetItem"}
)
_SPREADS = frozenset({"TensorListFromTensor", "TensorListSplit"})
_REUSES = frozenset({*ELEMENTWISE, "AddN", "BiasAdd", "Softmax", "LogSoftmax"})


class Peak(NamedTuple):
    """The most bytes that are alive at once, and which of them copy weights.

    Attributes:
      size: of all activations.
      weights: of it, 16-bit copies of variables and of what is computed of them alone.
    """

    size: int
    weights: int


@dataclasses.dataclass(slots=True)
class _Buffer:
    """Bytes that are held from one moment to another, both included.

    `runs` is how often a step writes it; `is_weight` whether it copies a variable.
    """

    size: int
    birth: int
    death: int
    runs: float
    is_weight: bool = False


def peak_of(draft: Draft) -> Peak:
    """Return the most bytes of activations that are alive at once.

    Of a draft whose slots are colored and casts are planned.
    """
    return _Liveness(draft).peak()


class _Liveness:
    """Buffers of one graph; node number k of the order runs at moment 2 k.

    A cast runs right after the node that it reads from, at the odd moment in between.
    """

    def __init__(self, draft: Draft) -> None:
        self._view, self._slots, self._draft = draft.view, draft.slots, draft
        self._conversions = draft.casts.conversions
        self._cast_of = {
            reader: number
            for number, conversion in enumerate(self._conversions)
            for reader in conversion.readers
        }
        self._last = 2 * len(self._view.order)
        self._buffers: list[_Buffer] = []
        self._of_port: dict[Port, _Buffer | None] = {}
        self._of_cast: dict[int, _Buffer | None] = {}
        self._written_at: dict[int, int] = {}
        self._of_variables: set[Port] = set()
        # First element pushed, the others, the list.
        self._kept: list[tuple[_Buffer, _Buffer, _Buffer | None]] = []
        # By the moment, what may be written over and the bytes that are written.
        self._reusable: dict[int, tuple[Sequence[_Buffer | None], int]] = {}

    def _run(self, node: Node, moment: int) -> None:
        """Follow what `node` reads and writes at its moment."""
        self._written_at[node.index] = moment
        read = [self._read(node, position) for position in range(len(node.inputs))]
        for buffer in read:
            if buffer is not None:
                end = self._last if node.op in table.RESULT_OPS else moment
                buffer.death = max(buffer.death, end)
        outputs = range(self._slots.output_count(node.index))
        varying = {
            port
            for port in node.inputs
            if self._view.nodes[port.node].op not in table.CONSTANT_OPS
        }
        # What depends on variables alone.
        if node.op in _READS or (varying and varying <= self._of_variables):
            self._of_variables.update(Port(node.index, output) for output in outputs)
        if node.op in _WEIGHTS:
            return
        end = self._last if node.name in self._view.item.fetch else moment
        for output in outputs:
            self._write(node, output, read, end)
        if node.op not in table.PUSHED_INPUT:
            return
        first = read[table.PUSHED_INPUT[node.op]]
        if first is not None:
            # A list holds as many elements as the loop pushes, as long as it lives.
            # What a loop pushes without writing it anew is one tensor, kept once.
            others = min(self._view.weight(node.index), first.runs) - 1.0
            buffer = self._new(int(first.size * others), moment, moment, node.index)
            self._kept.append((first, buffer, read[0]))

    def peak(self) -> Peak:
        """Return the most bytes, once every node has run."""
        for moment, index in enumerate(self._view.order):
            self._run(self._view.nodes[index], 2 * moment)
        for first, others, holder in self._kept:
            others.death = max(others.birth, holder.death if holder else 0)
            first.death = max(first.death, others.death)
        born, dying = [0] * (self._last + 1), [0] * (self._last + 1)
        for buffer in self._buffers:
            born[buffer.birth] += buffer.size
            dying[buffer.death] += buffer.size
        # What is written over a tensor of its size without another reader.
        reused = {
            moment: size
            for moment, (read, size) in self._reusable.items()
            if any(b is not None and (b.death, b.size) == (moment, size) for b in read)
        }
        alive = most = at = 0
        for moment in range(self._last + 1):
            alive += born[moment]
            if alive - reused.get(moment, 0) > most:
                most, at = alive - reused.get(moment, 0), moment
            alive -= dying[moment]
        weights = (b for b in self._buffers if b.is_weight and b.birth <= at <= b.death)
        return Peak(most, sum(buffer.size for buffer in weights))

    def _read(self, node: Node, position: int) -> _Buffer | None:
        """Return the buffer of an input; None for a weight's, or around a loop."""
        number = self._cast_of.get(Reader(node.index, position))
        if number is None:
            return self._of_port.get(node.inputs[position])
        if number not in self._of_cast:
            self._of_cast[number] = self._cast(self._conversions[number])
        return self._of_cast[number]

    def _cast(self, conversion: Conversion) -> _Buffer | None:
        source = conversion.source
        read = self._of_port.get(source)
        if conversion.is_identity:
            return read
        if is_foldable(self._view, conversion.port):
            return None
        begin = end = after = self._written_at[source.node] + 1
        if read is not None:
            read.death = max(read.death, after)
        size = self._elements(source) * _bytes_of(conversion.target_dtype)
        hoist = conversion.hoist
        node = self._view.nodes[hoist[-1]].inputs[0].node if hoist else source.node
        if conversion.port in self._draft.kept:
            begin, end = 0, self._last
        buffer = self._new(size, begin, end, node)
        is_low = conversion.target_dtype != FLOAT32
        buffer.is_weight = is_low and source in self._of_variables
        return buffer

    def _write(
        self, node: Node, output: int, read: Sequence[_Buffer | None], end: int
    ) -> None:
        port = Port(node.index, output)
        if node.op in _VIEWS and read:
            # What comes around a loop into a Merge is not known yet.
            first = next((buffer for buffer in read if buffer is not None), None)
            seen = read[output] if node.op == "IdentityN" else first
            if seen is not None:
                seen.death = max(seen.death, end)
            self._of_port[port] = seen
            return
        source = node.inputs[0] if node.op in _SPREADS else port
        slot = self._slots.output_slot(*source)
        is_low = slot != NO_SLOT and self._draft.low[slot]
        width = 2 if is_low else _bytes_of(self._slots.output_dtype(*source))
        size = width * self._elements(source) if width else 0
        moment = self._written_at[node.index]
        self._of_port[port] = self._new(size, moment, end, node.index)
        if node.op in _REUSES:
            self._reusable[moment] = (read, size)

    def _new(self, size: int, birth: int, death: int, node: int) -> _Buffer:
        buffer = _Buffer(size, birth, death, self._view.weight(node))
        self._buffers.append(buffer)
        return buffer

    def _elements(self, port: Port) -> int:
        shape = known_shape(self._draft.shapes, self._view, port)
        return TensorSpec(shape, "").elements


def _bytes_of(dtype: int) -> int:
    return DTYPE_BYTES.get(dtype_name(dtype), 4) if dtype else 0
