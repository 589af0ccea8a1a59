"""A graph's predicted times next to its measured ones, in float32 and mixed.

Runs happen in a sandbox: variables, data sets and files of the program stay as they
are. Whole steps are run in turn; ops are timed by TensorFlow's own records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf
from rich.console import Group
from rich.text import Text

from grappler_pass.graph.device_types import device_type_of
from grappler_pass.planning.decisions import trial_from_draft
from grappler_pass.planning.draft import Draft, Trial
from grappler_pass.planning.plan import Plan
from grappler_pass.rewriting.apply import CAST_STEM
from tf_amp.compare.alternation import Verdict, alternate
from tf_amp.errors import NotMeasurableError
from tf_amp.report import plans
from tf_amp.report.codec import Stored
from tf_amp.report.display import Display, FittedTable, plain_text
from tf_amp.rewriting.graph_settings import target_device_type
from tf_amp.run.graph_copy import (
    SOURCE,
    STEP,
    WAIT,
    NotRunnableError,
    Sandbox,
    sandbox_from_graph,
)
from tf_amp.run.graph_run import GraphRun, most_bytes, quiet_config
from tf_amp.tracing.grappler_preview import with_bodies
from tf_amp.tracing.stamp_reader import with_traced_shapes

# Steps of each kind there should be time for.
_STEPS = 12
_SECONDS = 10.0
# Behind the name of a node, before that of a part it was split into.
_PART = "/tf_amp_"
BEFORE, AFTER = "before", "after"
_FEWEST_TRACES, _MOST_TRACES = 2, 8
# What a GPU's kernels take is kept separate from what the host takes to launch them.
_KERNELS = "/stream:all"
_MOST_PAIRS = 400
_FEWEST_PAIRS = 2
_WARM_UPS, _WARM_UP_SECONDS = 3, 0.05
# Of all steps together, however slow.
_LONGEST_SECONDS = 120.0
_MILLI = 1e3
_TIMES = tuple(
    f"{dtype} {name}"
    for dtype in ("f32", "mixed")
    for name in ("predicted ms", "measured ms", "ratio")
)
# What a narrow terminal leaves out, first what follows from the others.
_SPARE = ("nodes", "f32 ratio", "mixed ratio", "f32 predicted ms", "mixed predicted ms")
_MISSES = 5


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds per step of the same work, as predicted and as measured."""

    predicted_seconds: float
    measured_seconds: float

    @property
    def ratio(self) -> float | None:
        """Predicted over measured; None where nothing was measured."""
        if self.measured_seconds <= 0.0:
            return None
        return self.predicted_seconds / self.measured_seconds

    @property
    def miss_seconds(self) -> float:
        """How far apart they are."""
        return abs(self.predicted_seconds - self.measured_seconds)


@dataclasses.dataclass(frozen=True)
class OpTimes:
    """All nodes of one op.

    Attributes:
      op: its name; `ADDED_CASTS` for what the plan inserts.
      nodes: how many there are.
      float32: in the graph as given.
      mixed: in the graph rewritten.
    """

    op: str
    nodes: int
    float32: Times
    mixed: Times

    @property
    def miss_seconds(self) -> float:
        """The larger miss of both graphs."""
        return max(self.float32.miss_seconds, self.mixed.miss_seconds)


ADDED_CASTS = "(added casts)"


@dataclasses.dataclass(frozen=True, repr=False)
class Prediction(Display, Stored):
    """A plan, with the times of the graph it is for.

    The times of ops are taken with one op running at a time, those of the whole step
    as the program runs it; so they need not add up.

    Attributes:
      plan: what was planned.
      float32: the whole step as given.
      mixed: the whole step rewritten; equal to `float32` where the plan is empty.
      ops: by op, the slowest first.
      speedup_error: standard error of the logarithm of the measured speed-up.
      pairs: how often both graphs were run.
    """

    TEXT_WIDTH: ClassVar[int] = 200

    plan: Plan
    float32: Times
    mixed: Times
    ops: tuple[OpTimes, ...]
    speedup_error: float = 0.0
    pairs: int = 0

    @property
    def predicted_speedup(self) -> float:
        """Predicted seconds in float32 over predicted seconds mixed."""
        return _over(self.float32.predicted_seconds, self.mixed.predicted_seconds)

    @property
    def measured_speedup(self) -> float:
        """Measured seconds in float32 over measured seconds mixed."""
        return _over(self.float32.measured_seconds, self.mixed.measured_seconds)

    def misses(self, count: int = _MISSES) -> tuple[OpTimes, ...]:
        """Return the ops whose times were missed by most, the largest miss first."""
        ranked = sorted(self.ops, key=lambda row: -row.miss_seconds)
        return tuple(ranked[:count])

    def top(self, count: int | None) -> Prediction:
        """Return it with its `count` slowest ops and best plan rows; None: with all."""
        return dataclasses.replace(
            self, plan=self.plan.top(count), ops=self.ops[:count]
        )

    def summary(self) -> str:
        """Return one line: whole step in both precisions, and the speed-up."""
        return (
            f"{self.plan.graph or 'graph'}: {self.plan.compared_with} takes "
            f"{_pair(self.float32)}, mixed precision {_pair(self.mixed)}. The measured "
            "speed-up is "
            f"{self.measured_speedup:.2f}, with a standard error of "
            f"{self.speedup_error:.0%} in {self.pairs} pairs of runs. The predicted "
            f"one is {self.predicted_speedup:.2f}."
        )

    def __str__(self) -> str:
        """Print the plan, then predicted next to measured, then the largest misses."""
        parts = [
            str(self.plan),
            "",
            plain_text(self._table(), self.TEXT_WIDTH),
            self.summary(),
        ]
        return "\n".join([*parts, self._largest_misses()])

    def __rich__(self) -> Group:
        """Show in a terminal, the plan folded to its width."""
        return self.tables_of(plans.tables_of(self.plan))

    def tables_of(self, plan: Group) -> Group:
        """Return what is shown of the plan with the times, for a terminal."""
        last = Text(f"{self.summary()}\n{self._largest_misses()}")
        return Group(plan, Text(), self._table(), last)

    def _largest_misses(self) -> str:
        misses = ", ".join(
            f"{row.op} (by {_MILLI * row.miss_seconds:.3g} ms)" for row in self.misses()
        )
        return f"Predictions were off most for {misses or 'nothing'}."

    def _table(self) -> FittedTable:
        titles = ("op", "nodes", *_TIMES)
        rows = [
            (row.op, str(row.nodes), *_cells(row.float32), *_cells(row.mixed))
            for row in self.ops
        ]
        rows.append(("whole step", "", *_cells(self.float32), *_cells(self.mixed)))
        return FittedTable(
            titles, rows, numbers=titles[1:], spare=_SPARE, has_rule=False
        )


def _cells(times: Times) -> tuple[str, str, str]:
    ratio = times.ratio
    return (
        f"{_MILLI * times.predicted_seconds:.3f}",
        f"{_MILLI * times.measured_seconds:.3f}",
        "-" if ratio is None else f"{ratio:.2f}",
    )


def _pair(times: Times) -> str:
    return (
        f"{_MILLI * times.measured_seconds:.3g} ms (predicted: "
        f"{_MILLI * times.predicted_seconds:.3g} ms)"
    )


def _over(before: float, after: float) -> float:
    return before / after if after > 0.0 else 1.0


def prediction_of(draft: Draft) -> Prediction:
    """Run the graph of a draft as it is and rewritten, and return the times."""
    # What the shapes leave open, a run leaves open too.
    trial = trial_from_draft(dataclasses.replace(draft, shapes=draft.infer_shapes()))
    both = trial.seconds_before + trial.seconds_after
    seconds = min(max(_SECONDS, _STEPS * both), _LONGEST_SECONDS)
    try:
        sandboxes = sandboxes_of(trial)
        compared, nodes = _compared(sandboxes, seconds), _traced(sandboxes, seconds)
    except (NotRunnableError, tf.errors.OpError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise NotMeasurableError(
            f"{draft.name or 'The graph'} cannot be run: {why}."
        ) from error
    plan, before = draft.plan, compared.seconds_before
    # The ratio of neighboring runs is surer than either time.
    after = before if plan.is_empty else before / compared.ratio
    return Prediction(
        plan=plan,
        float32=Times(plan.seconds_before, before),
        mixed=Times(plan.seconds_after, after),
        ops=_op_times(draft, nodes[BEFORE], nodes[AFTER]),
        speedup_error=compared.error,
        pairs=len(compared.pairs),
    )


def _op_times(
    draft: Draft, before: Mapping[str, float], after: Mapping[str, float]
) -> tuple[OpTimes, ...]:
    """Return the times of each op, given what nodes took; the slowest first."""
    plan, prices, low_nodes = draft.plan, draft.prices, draft.low_nodes
    predicted32: dict[str, float] = defaultdict(float)
    predicted16: dict[str, float] = defaultdict(float)
    for node in draft.view.nodes:
        float32 = prices.float32[node.index]
        low = prices.low[node.index] if node.index in low_nodes else None
        predicted32[node.op] += float32
        predicted16[node.op] += float32 if low is None else low
    predicted16[ADDED_CASTS] = sum(row.cast_seconds for row in plan.decisions)
    op_of = {node.name: node.op for node in draft.view.nodes}
    measured32, measured16 = _by_op(before, op_of), _by_op(after, op_of)
    counts = Counter(op_of.values())
    if plan.casts:
        counts[ADDED_CASTS] = plan.casts
    rows = (
        OpTimes(
            op,
            count,
            Times(predicted32[op], measured32[op]),
            Times(predicted16[op], measured16[op]),
        )
        for op, count in counts.items()
    )

    def longest(row: OpTimes) -> float:
        times = (*dataclasses.astuple(row.float32), *dataclasses.astuple(row.mixed))
        return float(max(times))

    return tuple(sorted(filter(longest, rows), key=longest, reverse=True))


def _by_op(seconds: Mapping[str, float], op_of: Mapping[str, str]) -> dict[str, float]:
    """Add up by op, parts of a node that was split under its own.

    What stands for data of the program counts for nothing.
    """
    total: dict[str, float] = defaultdict(float)
    for node, took in seconds.items():
        if SOURCE in node or WAIT in node:
            continue
        if f"/{CAST_STEM}" in node:
            total[ADDED_CASTS] += took
        elif op := op_of.get(node) or op_of.get(node.partition(_PART)[0]):
            total[op] += took
    return total


def sandboxes_of(trial: Trial) -> dict[str, Sandbox]:
    """Return both graphs' sandboxes.

    NotRunnableError: a device has no room for what it holds while they run.
    """
    # Grappler knows neither what the functions do that it leaves, nor what they return.
    shapes = with_traced_shapes(trial.before, trial.shapes)
    boxes = {
        name: sandbox_from_graph(with_bodies(graph_def), trial.item, shapes)
        for name, graph_def in ((BEFORE, trial.before), (AFTER, trial.after))
    }
    # Results lie on the device that computes them.
    computing = target_device_type(trial.before)
    held = Counter({f"/device:{computing}:0": 0})
    for content in {c.name: c for box in boxes.values() for c in box.contents}.values():
        held[content.device or f"/device:{computing}:0"] += content.size_bytes
    for device, size in held.items():
        device_type = device_type_of(device)
        added = trial.added_bytes if device_type == computing else 0
        if size + added > most_bytes(device_type):
            raise NotRunnableError(
                f"a copy of its variables takes {size >> 20} MiB of {device_type} "
                f"memory, and running it {added >> 20} MiB more"
            )
    return boxes


def run_of(
    sandboxes: Mapping[str, Sandbox], seconds: float, *, one_op_at_a_time: bool = False
) -> GraphRun:
    """Return a run of sandboxes side by side, which share synthetic contents."""
    contents = {c.name: c for box in sandboxes.values() for c in box.contents}
    return GraphRun(
        {name: box.graph_def for name, box in sandboxes.items()},
        contents.values(),
        config=quiet_config(one_op_at_a_time=one_op_at_a_time),
        limit_seconds=seconds,
    )


def _compared(sandboxes: Mapping[str, Sandbox], seconds: float) -> Verdict:
    """Return which graph's steps are faster, by as many as there is time for."""
    end = time.perf_counter() + seconds
    latest = Verdict(())

    def is_over(verdict: Verdict) -> bool:
        nonlocal latest
        latest = verdict
        return len(verdict.pairs) >= _MOST_PAIRS

    with run_of(sandboxes, seconds) as run:

        def step(name: str) -> float:
            return run.seconds(f"{name}/{STEP}", max(end - time.perf_counter(), 1e-3))

        before, after = (functools.partial(step, name) for name in (BEFORE, AFTER))
        with contextlib.suppress(tf.errors.DeadlineExceededError):
            # The first steps choose kernels: that they are long says nothing.
            before(), after()
            for _ in range(_WARM_UPS - 1):
                if before() + after() > _WARM_UP_SECONDS:
                    break
            alternate(before, after, is_over)
    if len(latest.pairs) < _FEWEST_PAIRS:
        raise NotRunnableError("its steps take longer than there is time")
    return latest


def _traced(
    sandboxes: Mapping[str, Sandbox], seconds: float
) -> dict[str, dict[str, float]]:
    """Return the seconds per step of each node of both graphs, loops included.

    One op at a time is run, so that an op is not charged for what runs beside it; the
    least of a few steps counts, node by node, since tracing only ever adds.
    """
    end = time.perf_counter() + seconds
    least: dict[str, dict[str, float]] = {name: {} for name in sandboxes}
    with run_of(sandboxes, seconds, one_op_at_a_time=True) as run:
        for name in sandboxes:
            run.seconds(f"{name}/{STEP}", seconds)
        for count in range(_MOST_TRACES):
            if count >= _FEWEST_TRACES and time.perf_counter() > end:
                break
            for name, of_graph in least.items():
                metadata = tf.compat.v1.RunMetadata()
                run.seconds(f"{name}/{STEP}", seconds, metadata)
                for node, took in _seconds_by_node(metadata.step_stats).items():
                    bare_name = node.removeprefix(f"{name}/")
                    if bare_name != node:
                        of_graph[bare_name] = min(took, of_graph.get(bare_name, took))
    return least


def _seconds_by_node(step_stats: Any) -> dict[str, float]:
    """Add up what one step recorded of each node."""

    def name_of(stats: Any) -> str:
        return str(stats.node_name.partition(":")[0])

    devices = step_stats.dev_stats
    streams = [each for each in devices if each.device.endswith(_KERNELS)]
    on_stream = {name_of(stats) for each in streams for stats in each.node_stats}
    total: dict[str, float] = defaultdict(float)
    for each in devices:
        is_stream = each.device.endswith(_KERNELS)
        if "stream" in each.device and not is_stream:
            continue
        for stats in each.node_stats:
            name = name_of(stats)
            if is_stream or name not in on_stream:
                nanoseconds = stats.op_end_rel_nanos - stats.op_start_rel_nanos
                total[name] += max(nanoseconds, 0) * 1e-9
    return total
