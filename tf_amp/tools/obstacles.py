"""What holds a node of a planned graph back, and what its author can do about it.

The first rule that knows something of a node speaks. A change, to another type or other
op lists, is tried on the graph before it is reported, by the rules that the pass itself
keeps to, and the graph is planned with it. Nothing here changes a plan.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from grappler_pass import pipeline
from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.costs.calls import Product, Work
from grappler_pass.costs.op_work import works_of
from grappler_pass.costs.times import Roofline
from grappler_pass.eligibility.exclusions import without_call_scopes
from grappler_pass.fork_safety import cached_attribute
from grappler_pass.graph.op_table import REF_VARIABLE_OPS
from grappler_pass.graph.op_traits import INPUT, RESULT
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.type_slots import dtype_name
from grappler_pass.graph.view import Node, Port
from grappler_pass.planning.draft import PRICED, Draft, Settings
from grappler_pass.planning.plan import Cause, Decision
from grappler_pass.planning.prices import op_call_of
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.setting_values import LIST_PREFIX, ListEdit
from tf_amp.tools.target_device import Target

_HALF_FULL = 0.5
# An op that takes less than this many starts is bound by them.
_LAUNCHES = 1.5
_CAST_SHARE = 0.25
_BY_LISTS = (Cause.DENY, Cause.DENY_TAINT, Cause.NOT_LISTED)
_SHOWN = 10
# Losses under this share of the step are not worth a look.
_LEAST_SHARE = 0.01
# Sizes of a product that keep 16-bit units busy are multiples of it.
_TILE = 128
# They keep their types, whoever asks for others.
_VARIABLES = (*REF_VARIABLE_OPS, "VarHandleOp", "ReadVariableOp")
# What a caller may do about a neighbor that is an input or a result.
_HANDED = {
    INPUT: "cast the input before the call, as in Dataset.map, to",
    RESULT: "let the function return this result in",
}
_IF_HARMLESS = "if you know it to be harmless"
Edits = tuple[ListEdit, ...]


class Remedy(NamedTuple):
    """What may be written to help a node.

    Attributes:
      text: human-readable; empty where nothing helps.
      low_dtype: with which the graph can be planned to see what it gives; empty where
        no setting changes.
      edits: of the lists, likewise.
      saved_seconds: at most per step of the node; None where the remedy helps more
        than the node, or what it gives depends on sizes that are not known.
    """

    text: str = ""
    low_dtype: str = ""
    edits: Edits = ()
    saved_seconds: float | None = None


NO_REMEDY = Remedy()


@dataclasses.dataclass(frozen=True, eq=False)
class Alternatives:
    """Other types and op lists, tried on a draft that was planned for a target.

    Attributes:
      draft: planned for the target.
      target: the device.
      config: that the graph was traced under.
      name: of the function, to be put before those of its nodes.
      runs: how often it runs in each step.
    """

    draft: Draft
    target: Target
    config: AmpConfig
    name: str = ""
    runs: float = 1.0
    _eligible: dict[tuple[str, Edits], tuple[bool, ...]] = dataclasses.field(
        default_factory=dict, init=False
    )
    _saved: dict[tuple[str, Edits], float] = dataclasses.field(
        default_factory=dict, init=False
    )

    def is_free_in(self, low_dtype: str, node: Node) -> bool:
        """Tell whether a node could be in 16 bits if these were of another type."""
        return self._is_free(node, low_dtype, self.config.list_edits)

    def saved_seconds(self, remedy: Remedy) -> float:
        """Return the seconds that the plan with a remedy takes less per step."""
        key, draft = (remedy.low_dtype, remedy.edits), self.draft
        if key not in self._saved:
            planned = pipeline.draft_graph(
                draft.given,
                draft.item,
                self._settings(*key),
                shapes=draft.infer_shapes,
                name=draft.name,
            )
            saved = draft.plan.seconds_after - planned.plan.seconds_after
            self._saved[key] = self.runs * saved
        return self._saved[key]

    def freeing(self, op: str, node: Node) -> Remedy:
        """Return how to edit the lists of an op to free a node, if an edit does so.

        The smallest change that does so is returned.
        """
        edits, low_dtype = self.config.list_edits, self.target.low_dtype
        askers = dict.fromkeys(
            e.asked_by.removeprefix(LIST_PREFIX) for e in edits if op in e.ops
        )
        without = tuple(
            dataclasses.replace(e, ops=tuple(each for each in e.ops if each != op))
            for e in edits
        )
        cleared = (*without, ListEdit("add", "clear", (op,)))
        undo = f"take {op} out of {' and '.join(askers)}"
        if askers and self._is_free(node, low_dtype, without):
            return Remedy(f"{_IF_HARMLESS}: {undo}", low_dtype, without)
        if not self._is_free(node, low_dtype, cleared):
            return NO_REMEDY
        change = f"{undo}, and --add clear={op}" if askers else f"--add clear={op}"
        return Remedy(f"{_IF_HARMLESS}: {change}", low_dtype, cleared)

    def _is_free(self, node: Node, low_dtype: str, edits: Edits) -> bool:
        key, draft = (low_dtype, edits), self.draft
        if key not in self._eligible:
            chosen = self._settings(low_dtype, edits)
            tried = pipeline.constrained(dataclasses.replace(draft, settings=chosen))
            self._eligible[key] = tried.constraints.eligible
        slots = draft.slots.slots_of[node.index]
        return any(self._eligible[key][slot] for slot in slots)

    def _settings(self, low_dtype: str, edits: Edits) -> Settings:
        """Return the settings of the draft but for its type and its lists."""
        edited = dataclasses.replace(self.config, list_edits=edits)
        other = dataclasses.replace(self.target, low_dtype=low_dtype)
        own = self.draft.settings
        chosen = other.settings(edited, is_compiled=own.fuses)
        return dataclasses.replace(chosen, own_steps=own.own_steps)


@dataclasses.dataclass(frozen=True, eq=False)
class AuditedNode:
    """One priced node of a planned graph, on a device, beside what might be asked for.

    Attributes:
      decision: of the node's first slot, which carries its price.
      is_low: whether any slot of the node is in 16 bits.
    """

    alternatives: Alternatives
    node: Node
    decision: Decision
    is_low: bool

    @property
    def draft(self) -> Draft:
        """The plan of the function that it is in."""
        return self.alternatives.draft

    @property
    def roofline(self) -> Roofline:
        """The rates of the device, for what XLA compiles if it does."""
        return self.draft.settings.models["CPU"].profile.roofline

    @property
    def name(self) -> str:
        """Its name, behind that of the function that it is in."""
        return "/".join(filter(None, (self.alternatives.name, self.node.name)))

    @property
    def low_dtype(self) -> str:
        """The 16-bit type of the plan."""
        return self.draft.settings.low_dtype

    @property
    def seconds(self) -> float:
        """Seconds of the node in the planned step, its casts included."""
        row = self.decision
        low = row.seconds_low if self.is_low else None
        return (row.seconds_float32 if low is None else low) + row.cast_seconds

    @property
    def best_seconds(self) -> float:
        """Seconds of the node if 16 bits gave all they can."""
        product = self.product
        if product is None:
            return self.decision.seconds_float32 / 2
        rates = self.roofline.matrix_flops
        flops = 2.0 * product.batch * product.m * product.n * product.k
        peak = max(rates.get(self.low_dtype, 0.0), rates["float32"])
        best = self.weight * flops / peak
        return min(best, self.decision.seconds_float32)

    @property
    def lost_seconds(self) -> float:
        """Seconds that 16 bits at their best would save."""
        return self.seconds - self.best_seconds

    @cached_attribute
    def call(self) -> OpCall:
        """The node as pricing sees it."""
        draft = self.draft

        def spec(port: Port) -> TensorSpec:
            shape = known_shape(draft.shapes, draft.view, port)
            enum = draft.slots.output_dtype(port.node, port.output)
            return TensorSpec(shape, dtype_name(enum, "float32"))

        return op_call_of(self.node, draft.slots, spec)

    @cached_attribute
    def works(self) -> tuple[Work, ...]:
        """The work of the node in 16 bits."""
        return works_of(self.call, self.low_dtype)

    @property
    def product(self) -> Product | None:
        """The matrix product that the node is, if it is one."""
        return next((work.product for work in self.works if work.product), None)

    @property
    def weight(self) -> float:
        """How often a step runs the node."""
        return float(self.alternatives.runs * self.draft.view.weight(self.node.index))

    @property
    def shape(self) -> str:
        """The shape of what it computes, human-readable."""
        if (product := self.product) is not None:
            batch = f"{product.batch} x " if product.batch > 1 else ""
            return f"{batch}[{product.m},{product.k}]x[{product.k},{product.n}]"
        # Of an update, which has no result, the gradient.
        specs = self.call.outputs[:1] or self.call.inputs
        sizes = [spec.dims for spec in specs if spec.dtype != "resource"]
        largest = max(sizes, key=lambda dims: len(dims), default=())
        return "x".join(map(str, largest)) or "scalar"

    def float32_neighbors(self) -> Iterator[tuple[Node, Decision]]:
        """Yield the nodes beside this one that stay float32, with their rows."""
        view, slots = self.draft.view, self.draft.slots
        beside = [port.node for port in self.node.inputs]
        for port in view.output_ports(self.node.index):
            beside += [reader.node for reader in view.readers(port)]
        for index in dict.fromkeys(beside):
            rows = [self.draft.plan.decisions[s] for s in slots.slots_of[index]]
            if rows and not any(row.is_low for row in rows):
                yield view.nodes[index], rows[0]


def reason_and_remedy(case: AuditedNode) -> tuple[str, Remedy]:
    """Return what holds a node back, by the first rule that applies, and a remedy."""
    row, product = case.decision, case.product
    cause, why = row.reason.cause, str(row.reason)
    if cause is Cause.HOST:
        compiled = "model.compile(jit_compile=True) or tf.function(jit_compile=True)"
        other = "TF_AMP_COMPILE=clusters lets its own steps decide"
        return cause.value, Remedy(f"compile the step: {compiled}; {other}")
    if not case.is_low and cause not in (Cause.COST, Cause.CASTS, Cause.MARGIN):
        # Op lists or the caller keep it in float32, whatever it costs.
        view, detail = case.draft.view, row.reason.detail
        why = without_call_scopes(why)
        if cause is Cause.STATE_UPDATE or detail == row.slot.node:
            why = cause.value
        elif detail in view.index:
            # The op of a culprit, so that alike nodes say alike.
            why = f"{cause.value}: {view.nodes[view.index[detail]].op}"
        return why, _list_remedy(case)
    if (wasteful := _wasteful_product(case)) is not None:
        return wasteful
    if case.is_low and row.cast_seconds >= _CAST_SHARE * case.seconds:
        why = f"casts take {1e3 * row.cast_seconds:.3g} ms of it"
        return why, _neighbor_remedy(case)
    if cause is Cause.CASTS and not case.is_low:
        why = "16 bits are faster, the casts around it are not worth it"
        return why, _neighbor_remedy(case)
    launch = max(case.roofline.overhead_seconds, case.roofline.dispatch_seconds)
    starts = launch * max(len(case.works), 1) * case.weight
    if case.seconds <= _LAUNCHES * starts:
        return (
            f"starting it ({1e6 * launch:.0f} us) takes most of the time",
            Remedy("a larger batch: one of twice the size halves that per example"),
        )
    if not case.is_low:
        # Its price in 16 bits is no better.
        return cause.value, NO_REMEDY
    by_memory = "bound by memory: 16 bits halve what is moved, no more"
    if product is None:
        return by_memory, NO_REMEDY
    # What moving its operands and results in 16 bits takes at least.
    rates = case.roofline.bytes_per_second
    moved = case.weight * sum(work.bytes_moved for work in case.works)
    least_seconds = moved / (rates.get(case.low_dtype) or rates["float32"])
    if least_seconds > _HALF_FULL * case.seconds:
        return by_memory, NO_REMEDY
    share = case.best_seconds / case.seconds
    why = f"it keeps the 16-bit units {share:.0%} busy"
    sizes = (product.m, product.k, product.n)
    uneven = [str(size) for size in dict.fromkeys(sizes) if size % _TILE]
    if share > _HALF_FULL or not uneven:
        return why, NO_REMEDY
    text = "more channels"
    if "MatMul" in case.node.op:
        text = f"a batch or units in multiples of {_TILE}, not {' and '.join(uneven)}"
    return why, Remedy(text, saved_seconds=case.lost_seconds)


def _list_remedy(case: AuditedNode) -> Remedy:
    """Return what would free the node, if something that was tried does."""
    cause = case.decision.reason.cause
    if cause not in (*_BY_LISTS, Cause.RANGE):
        return NO_REMEDY
    rates = case.roofline.matrix_flops
    computes = rates.get("bfloat16", 0.0) > rates["float32"]
    if case.low_dtype == "float16" and computes:
        if case.alternatives.is_free_in("bfloat16", case.node):
            text = "--dtype bfloat16, which has float32's range"
            return Remedy(text, "bfloat16", case.alternatives.config.list_edits)
    if cause is Cause.RANGE:
        return NO_REMEDY
    return _freeing(case, case.node)


def _wasteful_product(case: AuditedNode) -> tuple[str, Remedy] | None:
    """Look for rows that tensor cores cannot read, and for units without a tile."""
    units, product = case.roofline.multiprocessors, case.product
    if units is None or product is None:
        return None
    if sizes := units.unaligned(product, case.low_dtype):
        step = units.alignment.get(case.low_dtype, 1)
        places = {product.m: "rows (m) of", product.k: "sum (k) over"}
        places[product.n] = "columns (n) of"
        names = " and ".join(f"{places[size]} {size}" for size in sizes)
        changes = ", ".join(f"{size} -> {-(-size // step) * step}" for size in sizes)
        return (
            f"{names}: no multiple of {step}, tensor cores idle or starve",
            Remedy(
                f"make the dimension a multiple of {step}: {changes}",
                saved_seconds=case.lost_seconds,
            ),
        )
    share = units.fill(product)
    if share > _HALF_FULL:
        return None
    return (
        f"{product.m} x {product.n} fills {share:.0%} of the {units.count} "
        "multiprocessors",
        Remedy("a larger batch", saved_seconds=case.lost_seconds),
    )


def _neighbor_remedy(case: AuditedNode) -> Remedy:
    """Return how a neighbor in float32 could go to 16 bits, if one can."""
    for node, row in case.float32_neighbors():
        cause, detail = row.reason
        is_variable = row.op in _VARIABLES
        if detail in (INPUT, RESULT) or (cause is Cause.PRESERVED and not is_variable):
            what = _HANDED.get(detail, "pass inputs, and take results, in")
            text = f"{what} {case.low_dtype} ({row.op})"
            of_casts = case.decision.cast_seconds
            return Remedy(text, saved_seconds=of_casts or case.lost_seconds)
        if cause in _BY_LISTS:
            remedy = _freeing(case, node)
            if remedy.text:
                return remedy._replace(text=f"{remedy.text}, for its neighbor")
    return NO_REMEDY


def _freeing(case: AuditedNode, node: Node) -> Remedy:
    """Return an edit that frees a node of the graph, if one does."""
    # The op whose list the node is on: of a fused node it may be a part.
    listed = case.draft.settings.lists.place_of(node.proto).op
    return case.alternatives.freeing(listed, node)


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """Nodes of one op and shape that are held back in the same way.

    Attributes:
      op: the nodes' op.
      shape: of what they compute, human-readable.
      nodes: their names.
      dtype: what they have in the planned step.
      seconds: that they take in it, casts included.
      lost_seconds: of these, what 16 bits at their best would save.
      why: what holds them back.
      remedy: what to write; empty where nothing helps.
      saved_seconds: that the remedy is expected to save per step at most; None where
        that is not known, or where there is no remedy.
    """

    op: str
    shape: str
    nodes: tuple[str, ...]
    dtype: str
    seconds: float
    lost_seconds: float
    why: str
    remedy: str
    saved_seconds: float | None = None


def obstacles_of(functions: Iterable[Alternatives]) -> tuple[Obstacle, ...]:
    """Return the nodes that lose most by their plans, alike ones together.

    Those that a remedy helps come first. What gains nothing in 16 bits, or has them and
    no remedy, is left out.
    """
    functions = tuple(functions)
    step = sum(each.runs * each.draft.plan.seconds_after for each in functions)
    groups: dict[tuple[str, ...], list[AuditedNode]] = defaultdict(list)
    remedies: dict[tuple[str, ...], list[Remedy]] = defaultdict(list)
    for alternatives in functions:
        for case in _held_back(alternatives):
            why, remedy = reason_and_remedy(case)
            is_helpless = not remedy.text
            if is_helpless and (
                case.is_low or case.decision.reason.cause is Cause.COST
            ):
                continue
            key = (case.node.op, case.shape, case.decision.dtype, why, remedy.text)
            groups[key].append(case)
            remedies[key].append(remedy)
    large = (k for k in groups if _lost_seconds(groups[k]) > _LEAST_SHARE * step)
    ranked = sorted(large, key=lambda key: -_lost_seconds(groups[key]))[:_SHOWN]
    found = [_obstacle(key, groups[key], remedies[key]) for key in ranked]
    obstacles = [each for each in found if each.remedy or each.dtype == "float32"]
    obstacles.sort(key=lambda each: (not each.remedy, -(each.saved_seconds or 0.0)))
    return tuple(obstacles)


def _held_back(alternatives: Alternatives) -> Iterator[AuditedNode]:
    """Yield the nodes of a plan that 16 bits at their best would make faster."""
    draft, runs = alternatives.draft, alternatives.runs
    for node in draft.view.nodes:
        slots = draft.slots.slots_of[node.index]
        if not slots or draft.prices.float32[node.index] <= 0.0:
            continue
        rows = [draft.plan.decisions[slot] for slot in slots]
        low = [row for row in rows if row.is_low]
        # The first slot carries the price, a low one the reason.
        says = (low or rows)[0]
        row = dataclasses.replace(
            rows[0].times(runs), reason=says.reason, dtype=says.dtype
        )
        case = AuditedNode(alternatives, node, row, bool(low))
        if case.lost_seconds > 0.0:
            yield case


def _lost_seconds(cases: Iterable[AuditedNode]) -> float:
    return sum(case.lost_seconds for case in cases)


def _obstacle(
    key: tuple[str, ...], cases: Sequence[AuditedNode], remedies: Sequence[Remedy]
) -> Obstacle:
    """Return an obstacle with what its remedy gives; without one that gives nothing."""
    op, shape, dtype, why, _ = key
    remedy, known = remedies[0], [each.saved_seconds for each in remedies]
    saved = None if None in known else sum(each or 0.0 for each in known)
    if remedy.low_dtype:
        # Of each graph that it would change, once.
        parts = {id(case.alternatives): case.alternatives for case in cases}
        saved = sum(part.saved_seconds(remedy) for part in parts.values())
        if saved <= 0.0:
            # Where costs count it would not be taken.
            is_priced = cases[0].draft.settings.opt_level == PRICED
            remedy, saved = NO_REMEDY if is_priced else remedy, None
    return Obstacle(
        op=op,
        shape=shape,
        nodes=tuple(case.name for case in cases),
        dtype=dtype,
        seconds=sum(case.seconds for case in cases),
        lost_seconds=_lost_seconds(cases),
        why=why,
        remedy=remedy.text,
        saved_seconds=saved,
    )
