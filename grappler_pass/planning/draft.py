"""What the pass receives, and a rewrite under way between two stages.

Where casts are needed between colors, and which of them need no node, is a part of it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs.model import Expected
from grappler_pass.eligibility.kernels import Kernels
from grappler_pass.eligibility.reads import (
    VariableReads,
    before_cast,
    is_cast,
    is_foldable,
)
from grappler_pass.eligibility.rules import Constraints
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.type_slots import DTYPE_ENUMS, FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import Graph, Item, Port, Reader
from grappler_pass.planning.plan import Cause, Fusion, Plan
from grappler_pass.planning.prices import Models, Prices

# In the place of a reader's number, where a cast is not for that reader alone.
_SHARED = -1


class Conversion(NamedTuple):
    """One tensor needed in another dtype by some of its readers.

    Attributes:
      port: the tensor; for a down conversion always float32 as given.
      source: where the converted value is taken from: `port`, or what an existing cast
        in front of it reads.
      source_dtype: DataType of `source` after the rewrite.
      target_dtype: DataType the readers need.
      readers: the data inputs to be redirected.
      device: where a cast runs: with the producer on the way down, with the reader on
        the way up, so that 16 bits cross the wire.
      hoist: for a variable read inside loops, the Enter nodes its handle came in
        through, innermost first; the read and its cast move outside of them.
      waits_for: nodes, by number, that run before the cast beside its source: where
        that is a ref variable's memory, and where the cast is read late.
      folds: whether it is made beforehand, from a constant; no cast is needed.
    """

    port: Port
    source: Port
    source_dtype: int
    target_dtype: int
    readers: tuple[Reader, ...]
    device: str
    hoist: tuple[int, ...] = ()
    folds: bool = False
    waits_for: tuple[int, ...] = ()

    @property
    def is_identity(self) -> bool:
        """Return whether the readers can simply read `source`."""
        return self.source_dtype == self.target_dtype

    @property
    def is_cast(self) -> bool:
        """Return whether a cast is put in for it."""
        return not self.is_identity and not self.folds


class CastPlan(NamedTuple):
    """What a rewrite does at every edge whose ends differ in color.

    Attributes:
      conversions: a new tensor each (or a redirection), at most one per port, target
        and device.
      absorbed: existing Casts that read a low tensor directly from now on.
    """

    conversions: tuple[Conversion, ...] = ()
    absorbed: tuple[int, ...] = ()


# Of the step: what is rounded in 16 bits for less, and called once or twice, is rounded
# for nothing.
DEFAULT_MARGIN = 0.05
# By so much of its seconds a node may be slower if its results take half the memory.
DEFAULT_TIE = 0.01

# From a graph, and the nodes in it that have to stay as they are, to the graph in the
# layouts that TensorFlow chooses for it; to None where it cannot be asked.
Layouts = Callable[[GraphDef, tuple[str, ...]], GraphDef | None]

PRICED, FORCED = "O1", ("O2", "O3")

_LATER: Any = None


class NodePrices(NamedTuple):
    """What a profile alone predicts of a node that a plan puts in 16 bits.

    Attributes:
      device_type: of the device that it runs on.
      float32: in float32.
      low: in 16 bits.
    """

    device_type: str
    float32: Expected
    low: Expected


@dataclasses.dataclass(frozen=True)
class Trial:
    """Two graphs of one function, of which the faster is wanted.

    Attributes:
      before: the graph as given.
      after: the graph rewritten.
      item: what the caller relies on, in both.
      shapes: static shapes by name of node, of `before`.
      seconds_before: predicted of `before`.
      seconds_after: predicted of `after`.
      name: of the graph, shown and to recognize it by.
      added_bytes: that running the larger graph is predicted to add to its variables,
        inputs and constants.
      is_certain: whether the predicted gain is so large that no doubt is left.
      is_sure: whether it is large enough for prices alone to decide.
      prices: of nodes that are in 16 bits in `after`, by "name:op".
    """

    before: GraphDef
    after: GraphDef
    item: Item
    shapes: Shapes
    seconds_before: float
    seconds_after: float
    name: str = ""
    added_bytes: int = 0
    is_certain: bool = False
    is_sure: bool = True
    prices: Mapping[str, NodePrices] = dataclasses.field(default_factory=dict)


class Outcome(enum.Enum):
    """What is known of two graphs of one function; the value is what a plan says."""

    # A plan is applied whatever steps would say.
    UNASKED = ""
    FASTER = "earlier steps were faster with this plan"
    SLOWER = "earlier steps were not faster with 16 bits"
    OPEN = "applied, and compared with float32 from the fifth call on"
    WITHHELD = "a close call: float32, and compared with 16 bits from the 21st call on"
    KERNEL_STATE = "predictions decide: steps cannot be compared, as kernels keep state"
    UNKNOWN = "predictions decide"


class OwnSteps(Protocol):
    """Lets the program's own steps decide what prices leave uncertain."""

    def outcome(self, trial: Trial, decided: Callable[[bool], None]) -> Outcome:
        """Return which of two graphs is faster.

        Args:
          trial: both graphs.
          decided: called once with whether the rewritten one is, if it is open.
        """


class PlanMemory(Protocol):
    """Knows how graphs came out before."""

    def recall(self, draft: Draft) -> tuple[bool, ...] | None:
        """Return for every slot whether it was low; None: the graph is not known.

        The stages of the draft up to "price" are done.
        """

    def keep(self, draft: Draft) -> None:
        """Remember how a graph came out, all stages done."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the caller decides about a rewrite.

    Attributes:
      low_dtype: "bfloat16" or "float16".
      lists: allow, infer, deny, clear for that dtype.
      models: a cost model per device type, "CPU" at least.
      opt_level: "O0" nothing, "O1" what pays, "O2" what is eligible, "O3" what has a
        kernel.
      exclude: regular expressions; nodes whose name one of them finds stay float32.
      ranges: names of nodes that stay float32 since tensors that they make or read
        were seen to leave the safe range, each with what was seen.
      margin: smallest predicted gain, as a share of the step and beyond its error,
        that O1 applies without asking steps.
      tie: share of a node's seconds by which 16 bits may be slower at O1 if they halve
        what the node writes; 0: exact ties stay float32.
      fuses: whether a compiler fuses elementwise ops and casts with their neighbors, as
        XLA does.
      home: where nodes run that name no device; None: all of them name one.
      own_steps: decide at O1 what the prices leave uncertain; None: prices decide.
      memory: knows plans that are not to be made again; None: all are.
      fusions: names of the fusions, of `fusions.RULES`.
      onednn: whether TensorFlow's kernels of oneDNN are on.
      keeps_weights: whether the process keeps what its graphs compute of variables
        alone (`fusions.kept_weights`): its variables change seldom.
      fold_constants: whether a constant is rounded now where 16 bits are read; if not,
        it stays as it is with a cast behind it.
      saves_memory: whether a step may take a little longer to hold less.
      predicts_memory: whether the plan is shown, and so says what a step holds.
      kernels: knows which 16-bit kernels compute wrong numbers; None: all are trusted.
      layouts: chooses layouts of convolutions on GPUs anew once they are in 16 bits;
        None: they stay as they are.
    """

    low_dtype: str
    lists: OpLists
    models: Models
    opt_level: str = PRICED
    exclude: tuple[str, ...] = ()
    ranges: tuple[tuple[str, str], ...] = ()
    margin: float = DEFAULT_MARGIN
    tie: float = DEFAULT_TIE
    fuses: bool = False
    home: Home | None = None
    own_steps: OwnSteps | None = None
    memory: PlanMemory | None = None
    fusions: tuple[str, ...] = ()
    onednn: bool = True
    keeps_weights: bool = False
    fold_constants: bool = True
    saves_memory: bool = False
    predicts_memory: bool = True
    kernels: Kernels | None = None
    layouts: Layouts | None = None

    @property
    def uses_lists(self) -> bool:
        """Whether the lists count, and what roundings harm: not at "O3"."""
        return self.opt_level != "O3"


@dataclasses.dataclass(frozen=True)
class Draft:
    """A rewrite under way; what later stages fill in is unset before them.

    Attributes:
      given: the graph as it arrived, with scalars that are shared computed once;
        `graph_def` is that with what is fused in it.
      is_shown: whether somebody asks what the graph takes, whatever comes of it.
      low_speedup: predicted of the cheapest types that have 16 bits, or else of 16 bits
        wherever they may be; without fusions. 0 if not known.
      kept: weights that cost no cast, since they are kept in 16 bits between calls.
    """

    graph_def: GraphDef
    item: Item
    settings: Settings
    infer_shapes: Callable[[], Shapes]
    name: str
    is_shown: bool = False
    view: Graph = _LATER
    slots: SlotTable = _LATER
    constraints: Constraints = _LATER
    reads: VariableReads = _LATER
    kept: frozenset[Port] = frozenset()
    shapes: Shapes = _LATER
    prices: Prices = _LATER
    recalled: tuple[bool, ...] | None = None
    low: tuple[bool, ...] = _LATER
    fallback: tuple[Cause | None, ...] = _LATER
    gain_error: float = 0.0
    low_speedup: float = 0.0
    is_sure: bool = True
    is_certain: bool = False
    is_open: bool = False
    casts: CastPlan = _LATER
    plan: Plan = _LATER
    rewritten: GraphDef = _LATER
    given: GraphDef = _LATER
    fusions: tuple[Fusion, ...] = ()
    traced_fusions: tuple[Fusion, ...] = ()
    declined_fusions: tuple[Fusion, ...] = ()

    @property
    def low_dtype(self) -> int:
        """The low dtype as a DataType enum."""
        return int(DTYPE_ENUMS[self.settings.low_dtype])

    def view_of(self, graph_def: GraphDef) -> Graph:
        """Return a view of the graph, or of what has become of it."""
        return Graph(graph_def, self.item, self.settings.home)

    @property
    def has_candidates(self) -> bool:
        """Return whether an allow op may be in 16 bits; else nothing can be gained."""
        return any(self.constraints.eligible[s] for s in self.constraints.allow)

    @property
    def memory(self) -> PlanMemory | None:
        """What knows the plan, where that hangs on prices."""
        wanted = self.settings.opt_level == PRICED and self.has_candidates
        return self.settings.memory if wanted else None

    @property
    def beside_nodes(self) -> float:
        """Seconds per step that the graph takes on the host, whatever its types."""
        return self.settings.models["CPU"].profile.call_seconds + self.prices.executor

    def step_seconds(self, device: float, starts: float = 0.0) -> float:
        """Return what a step takes: the device computes while its host starts ops.

        Args:
          device: seconds that its nodes and casts take.
          starts: ops that are started beside those of the graph as given.
        """
        host = self.prices.host + starts * self.prices.start
        return self.beside_nodes + max(device, host)

    @property
    def least_device_seconds(self) -> float:
        """Seconds of the nodes, each in the faster type, if casts took no time."""
        both = zip(self.prices.float32, self.prices.low, strict=True)
        return sum(min(a, a if b is None else b) for a, b in both)

    @property
    def is_host_bound(self) -> bool:
        """Return whether a GPU's host bounds what 16 bits can gain."""
        return 0.0 < self.prices.host >= self.least_device_seconds

    @property
    def float32_seconds(self) -> float:
        """Seconds of a step of the graph as given."""
        return self.step_seconds(sum(self.prices.float32))

    @property
    def low_nodes(self) -> frozenset[int]:
        """The nodes of which any slot is in 16 bits."""
        node_of = self.slots.node_of
        return frozenset(node_of[s] for s, is_low in enumerate(self.low) if is_low)

    @property
    def written_slots(self) -> tuple[int, ...]:
        """Slots of what passes on a variable that may be written before it is read."""
        passing = self.reads.refs.passing
        return tuple(slot for node in passing for slot in self.slots.slots_of[node])


def plan_casts(draft: Draft) -> CastPlan:
    """Find the conversions and absorptions that the colors of a draft need.

    Before   matmul(low) --> exp(f32), matmul(low) --> log(f32)
    After    matmul(low) --> cast_up --> exp(f32), log(f32)

    Constants are rounded beforehand, or by a cast when the graph runs.

    Not done: control edges never get a cast.
    """
    if not any(draft.low):
        return CastPlan()
    view, slots, reads = draft.view, draft.slots, draft.reads
    low_dtype = draft.low_dtype

    def is_low(slot: int) -> bool:
        return slot != NO_SLOT and draft.low[slot]

    groups: dict[tuple[Port, int, str, int], list[Reader]] = {}
    absorbed: list[int] = []
    for node in view.nodes:
        for position, port in enumerate(node.inputs):
            reads_low = is_low(slots.input_slot(node.index, position))
            if is_low(slots.output_slot(*port)) == reads_low:
                continue
            needed = low_dtype if reads_low else FLOAT32
            preserved = node.name in view.item.untouchable
            if needed == FLOAT32 and is_cast(node) and not preserved:
                absorbed.append(node.index)
                continue
            producer = view.nodes[port.node]
            device = node.device if needed == FLOAT32 else producer.device
            shared = reads.canonical.get(port, port) if needed == low_dtype else port
            reader = Reader(node.index, position)
            alone = node.index if reader in reads.refs.late else _SHARED
            groups.setdefault((shared, needed, device, alone), []).append(reader)
    conversions: list[Conversion] = []
    for (port, needed, device, alone), readers in groups.items():
        made = Conversion(port, port, low_dtype, needed, tuple(readers), device)
        if needed == low_dtype:
            source, dtype = before_cast(view, reads, port)
            made = made._replace(
                source=source,
                source_dtype=dtype,
                hoist=reads.hoists.get(port, ()),
                folds=draft.settings.fold_constants and is_foldable(view, port),
                waits_for=reads.refs.awaited(
                    view, port, None if alone == _SHARED else view.nodes[alone]
                ),
            )
        conversions.append(made)
    return CastPlan(tuple(conversions), tuple(absorbed))
