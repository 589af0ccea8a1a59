"""What holds a node of a planned graph back, and what its author can do about it.

The first rule that knows something of a node speaks. A change, to another type or other
op lists, is tried on the graph before it is reported, by the rules that the pass itself
keeps to; what it would gain is not looked at. Nothing here changes a plan.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator

from grappler_pass import pipeline
from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.costs.calls import Product, Work
from grappler_pass.costs.op_work import works_of
from grappler_pass.costs.times import Roofline
from grappler_pass.fork_safety import cached_attribute
from grappler_pass.graph.op_traits import INPUT, RESULT
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.type_slots import dtype_name
from grappler_pass.graph.view import Node, Port
from grappler_pass.planning.draft import Draft
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
# Losses under this share of what the mean node takes are not worth a look.
_LEAST_SHARE = 1e-3
Edits = tuple[ListEdit, ...]


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

    def is_free_in(self, low_dtype: str, node: Node) -> bool:
        """Tell whether a node could be in 16 bits if these were of another type."""
        return self._is_free(node, low_dtype, self.config.list_edits)

    def freeing_edit(self, op: str, node: Node) -> str:
        """Return how to edit the lists of an op to free a node; empty: in no way.

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
        clear = f"CLEARLIST_ADD={op}"
        cleared = (*without, ListEdit("add", "clear", (op,)))
        undo = f"take {op} out of {' and '.join(askers)}"
        if askers and self._is_free(node, low_dtype, without):
            return undo
        if not self._is_free(node, low_dtype, cleared):
            return ""
        return f"{undo}, and {clear}" if askers else clear

    def _is_free(self, node: Node, low_dtype: str, edits: Edits) -> bool:
        key, draft = (low_dtype, edits), self.draft
        if key not in self._eligible:
            edited = dataclasses.replace(self.config, list_edits=edits)
            other = dataclasses.replace(self.target, low_dtype=low_dtype)
            chosen = other.settings(edited, is_compiled=draft.settings.fuses)
            tried = pipeline.constrained(dataclasses.replace(draft, settings=chosen))
            self._eligible[key] = tried.constraints.eligible
        slots = draft.slots.slots_of[node.index]
        return any(self._eligible[key][slot] for slot in slots)


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
        """The rates of the device."""
        return self.alternatives.target.profile.roofline

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
        specs = (*self.call.outputs, *self.call.inputs)
        sizes = next((spec.dims for spec in specs if spec.dtype != "resource"), ())
        return "x".join(map(str, sizes)) or "scalar"

    def float32_neighbors(self) -> Iterator[Decision]:
        """Yield the rows of the nodes beside this one that stay float32."""
        view, slots = self.draft.view, self.draft.slots
        beside = [port.node for port in self.node.inputs]
        for port in view.output_ports(self.node.index):
            beside += [reader.node for reader in view.readers(port)]
        for index in dict.fromkeys(beside):
            rows = [self.draft.plan.decisions[s] for s in slots.slots_of[index]]
            if rows and not any(row.is_low for row in rows):
                yield rows[0]


def reason_and_remedy(case: AuditedNode) -> tuple[str, str]:
    """Return what holds a node back, by the first rule that applies, and a remedy.

    The remedy is empty where there is none.
    """
    row, product = case.decision, case.product
    cause, why = row.reason.cause, str(row.reason)
    if not case.is_low and cause not in (Cause.COST, Cause.CASTS, Cause.MARGIN):
        # Op lists or the caller keep it in float32, whatever it costs.
        view, detail = case.draft.view, row.reason.detail
        if cause is Cause.STATE_UPDATE:
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
            "larger batch, or fuse it with its neighbors (XLA)",
        )
    if not case.is_low:
        # Its price in 16 bits is no better.
        return why, ""
    by_memory = "bound by memory: 16 bits halve what is moved, no more"
    if product is None:
        return by_memory, ""
    # What moving its operands and results in 16 bits takes at least.
    rates = case.roofline.bytes_per_second
    moved = case.weight * sum(work.bytes_moved for work in case.works)
    least_seconds = moved / (rates.get(case.low_dtype) or rates["float32"])
    if least_seconds > _HALF_FULL * case.seconds:
        return by_memory, "wider layers do more with what they read"
    return (
        f"tiles of {product.m} x {product.n}, summed over {product.k}, do not keep "
        "the 16-bit units busy",
        "wider layers, multiples of 128",
    )


def _list_remedy(case: AuditedNode) -> str:
    """Say what would free the node; empty where nothing that was tried does."""
    cause = case.decision.reason.cause
    if cause not in (*_BY_LISTS, Cause.RANGE):
        return ""
    rates = case.roofline.matrix_flops
    computes = rates.get("bfloat16", 0.0) > rates["float32"]
    if case.low_dtype == "float16" and computes:
        if case.alternatives.is_free_in("bfloat16", case.node):
            return "plan in bfloat16, which has float32's range"
    if cause is Cause.RANGE:
        return ""
    # The op whose list the node is on: of a fused node it may be a part.
    listed = case.draft.settings.lists.place_of(case.node.proto).op
    edit = case.alternatives.freeing_edit(listed, case.node)
    return f"if you know it to be harmless: {edit}" if edit else ""


def _wasteful_product(case: AuditedNode) -> tuple[str, str] | None:
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
            f"make the dimension a multiple of {step}: {changes}",
        )
    share = units.fill(product)
    if share > _HALF_FULL:
        return None
    return (
        f"{product.m} x {product.n} fills {share:.0%} of the {units.count} "
        "multiprocessors",
        "larger batch",
    )


def _neighbor_remedy(case: AuditedNode) -> str:
    """Say how a neighbor in float32 could go to 16 bits, if one can."""
    for row in case.float32_neighbors():
        if row.reason.cause is Cause.PRESERVED or row.reason.detail in (INPUT, RESULT):
            return f"feed and fetch 16 bits ({row.op})"
        # A constant or a variable is what it is.
        if row.reason.cause is not Cause.FIXED:
            return f"free its neighbor {row.op}: {row.reason.cause.value}"
    return ""


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
      remedy: what to change; empty where nothing can be.
    """

    op: str
    shape: str
    nodes: tuple[str, ...]
    dtype: str
    seconds: float
    lost_seconds: float
    why: str
    remedy: str


def obstacles_of(functions: Iterable[Alternatives]) -> tuple[Obstacle, ...]:
    """Return the nodes that lose most by their plans, alike ones together."""
    groups: dict[tuple[str, ...], list[AuditedNode]] = defaultdict(list)
    for alternatives in functions:
        draft, runs = alternatives.draft, alternatives.runs
        seconds = runs * draft.plan.seconds_after
        least = _LEAST_SHARE * seconds / max(len(draft.view.nodes), 1)
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
            if case.seconds - case.best_seconds > least:
                key = (row.op, case.shape, row.dtype, *reason_and_remedy(case))
                groups[key].append(case)
    obstacles = (
        Obstacle(
            op=op,
            shape=shape,
            nodes=tuple(case.name for case in cases),
            dtype=dtype,
            seconds=sum(case.seconds for case in cases),
            lost_seconds=sum(case.seconds - case.best_seconds for case in cases),
            why=why,
            remedy=remedy,
        )
        for (op, shape, dtype, why, remedy), cases in groups.items()
    )
    ranked = sorted(obstacles, key=lambda obstacle: -obstacle.lost_seconds)
    return tuple(ranked[:_SHOWN])
