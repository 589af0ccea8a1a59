"""Run a graph on batches of data, or a script, and see what ranges its tensors keep to.

Those tensors are looked at whose range bears on a decision.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grappler_pass.costs.calls import TensorSpec
from grappler_pass.costs.op_work import works_of
from grappler_pass.eligibility.rules import constrain
from grappler_pass.fork_safety import renewed_lock
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ENTER_OPS, NEXT_ITERATION_OPS, SWITCH_OPS
from grappler_pass.graph.shapes import Shapes, known_shape
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.planning.prices import op_call_of
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.config.ranges import DEFAULT_UNDERFLOW, Ranges, TensorRange
from tf_amp.rewriting.compiled import WithoutXla
from tf_amp.run import batches as data
from tf_amp.run import graph_cases, progress
from tf_amp.run.graph_cases import GraphCase
from tf_amp.run.graph_copy import Array
from tf_amp.run.recording import Recorder, Records, Tap, with_records
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools import explanation
from tf_amp.tools.verify.cases import plain_case, run_recorded
from tf_amp.tracing.stamp_reader import is_gradient

_REDUCTIONS = frozenset("AvgPool BiasAddGrad Mean Prod SegmentSum Sum".split())
# Halfway from the largest value to what would come next: from here on it is infinity.
_OVERFLOW = {"float16": 65520.0, "bfloat16": 3.3961775e38}
# Half of the least value: up to here it becomes zero.
_UNDERFLOW = {"float16": 2.0**-25, "bfloat16": 2.0**-134}


def ranges(
    fn: Any,
    batches: Iterable[Any],
    *,
    limit: float | None = None,
    underflow: float = DEFAULT_UNDERFLOW,
    depth: int | None = None,
) -> Ranges:
    """Run a function in float32 on batches of data and return what its tensors keep to.

    Args:
      fn: a `tf.function`, any callable it could wrap (a Keras model), or a
        ConcreteFunction.
      batches: each an array, a sequence of them, or a mapping by name of argument.
      limit: largest magnitude that is safe in 16 bits; by default 512 in float16, and
        in bfloat16 what the type holds.
      underflow: largest share of a tensor's values that may become zero.
      depth: largest number of values that may be summed up for an element.

    Raises:
      UnfitDataError: a batch does not fit; the message names it and what is expected.
      NotMeasurableError: the function cannot be run by itself; the message says why.
    """
    check_tensorflow()
    listed = list(batches)
    if not listed:
        raise data.no_batch()
    seen = ranges_of(_traced_for(fn, listed[0]), listed)
    return dataclasses.replace(seen, limit=limit, underflow=underflow, depth=depth)


def ranges_of_saved_model(
    folder: pathlib.Path, file: pathlib.Path, signature: str | None = None
) -> Ranges:
    """Return the ranges of a SavedModel's signatures, or of the one named.

    Errors are those of `verify_saved_model`.
    """
    return joined(
        ranges_of(function, data.batches_from_file(file, data.specs_of(function)))
        for function in data.signatures_of(folder, signature).values()
    )


def ranges_of_script(
    run: Callable[[], object], environment: Mapping[str, str | None]
) -> Ranges:
    """Run a script in float32 and return the ranges of its graphs over all steps."""
    statistics = Statistics()

    def records_of(case: GraphCase) -> Records | None:
        if case.settings.fuses:
            return None
        view = Graph(case.graph_def, case.item, case.settings.home)
        return statistics.records_of(view, case.shapes)

    run_recorded(run, environment, records_of, WithoutXla())
    return statistics.ranges()


def _traced_for(fn: Any, batch: Any) -> Any:
    """Return the graph of a function for batches like one, of any size."""
    if explanation.is_concrete(fn):
        return fn

    def spec(value: Any) -> Any:
        array = np.asarray(value)
        sizes = [None, *array.shape[1:]] if array.ndim else []
        dtype = tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)
        return tf.TensorSpec(sizes, dtype)

    if isinstance(batch, Mapping):
        named = {name: spec(value) for name, value in batch.items()}
        return explanation.concrete_function(fn, (), named)
    values = batch if isinstance(batch, tuple | list) else (batch,)
    return explanation.concrete_function(fn, tuple(map(spec, values)), {})


def ranges_of(
    function: Any, batches: Iterable[Any], *, fetches: Iterable[str] = ()
) -> Ranges:
    """Return the ranges of a graph's float32 tensors over all batches.

    The graph runs in float32, outside of its program: functions are inlined, variables
    have the values they have now, and nothing outside is touched.

    Args:
      function: a ConcreteFunction (a signature of a SavedModel), or a GraphDef.
      batches: each a mapping from names of `specs_of(function)` to arrays, a sequence
        of arrays by position, or one array.
      fetches: names of the nodes to run, for a GraphDef.

    Raises:
      UnfitDataError: a batch does not fit; the message names it and what is expected.
      NotMeasurableError: the graph cannot be run by itself; the message says why.
    """
    case = plain_case(function, fetches)
    taken = data.checked_batches(batches, data.specs_of(function))
    view = Graph(case.graph_def, case.item, case.settings.home)
    statistics, records = Statistics(), None
    for batch in progress.each(taken, "running batches"):
        contents = {**case.values, **data.batch_by_placeholder(function, batch)}
        shaped = graph_cases.with_run_shapes(dataclasses.replace(case, values=contents))
        values = graph_cases.completed(shaped, (case.graph_def,))
        records = records or statistics.records_of(view, shaped.known_shapes)
        sandbox = graph_cases.sandbox_of(shaped, case.graph_def, values)
        recorder = Recorder()
        recording = with_records(sandbox.graph_def, records, recorder)
        sandbox = dataclasses.replace(sandbox, graph_def=recording)
        graph_cases.execute(sandbox, values, {})
    return statistics.ranges()


def joined(several: Iterable[Ranges]) -> Ranges:
    """Return the rows of several graphs together; of equal ones, only the first.

    Tensors of the same name are distinguished by what was seen of them: inlined, graphs
    that have nothing to do with each other use the same names.
    """
    rows: dict[str, list[TensorRange]] = {}
    batches = 0
    for each in several:
        batches = max(batches, each.batches)
        for seen in each.tensors:
            namesakes = rows.setdefault(seen.name, [])
            if seen not in namesakes:
                namesakes.append(seen)
    return Ranges(tuple(itertools.chain.from_iterable(rows.values())), batches)


def _tensors_in(view: Graph, shapes: Shapes) -> dict[str, TensorRange]:
    """Return the tensors that may be in 16 bits, by their names in the graph.

    They are what operations make or read that may be in either 16-bit type. Nothing has
    been seen of them yet.
    """
    slots = SlotTable.from_view(view)
    # Whether a list lets a slot be in 16 bits, whatever that costs.
    eligible = [
        any(of_types)
        for of_types in zip(
            *(
                constrain(view, shapes, OpLists.for_dtype(each), each).eligible
                for each in LOW_DTYPES
            ),
            strict=True,
        )
    ]
    tensors: dict[str, TensorRange] = {}
    for port, readers in _ports(view, slots, eligible).items():
        node = view.nodes[port.node]
        tensor = TensorRange(
            node=node.name,
            output=port.output,
            op=node.op,
            readers=readers,
            is_gradient=is_gradient(view, node),
            depth=_depth(view, slots, shapes, node),
        )
        tensors[tensor.name] = tensor
    return tensors


def _ports(
    view: Graph, slots: SlotTable, eligible: Sequence[bool]
) -> dict[Port, tuple[str, ...]]:
    """Return the tensors in question, each with the names of those that read it."""

    def is_eligible(slot: int) -> bool:
        return slot != NO_SLOT and eligible[slot]

    readers: dict[Port, list[str]] = {
        Port(node.index, output): []
        for node in view.nodes
        for output in range(slots.output_count(node.index))
        if is_eligible(slots.output_slot(node.index, output))
    }
    for node in view.nodes:
        for position, port in enumerate(node.inputs):
            if is_eligible(slots.input_slot(node.index, position)):
                readers.setdefault(port, []).append(node.name)
    return {
        port: tuple(dict.fromkeys(names))
        for port, names in readers.items()
        if slots.output_dtype(*port) == FLOAT32
        and view.readers(port)
        # A loop is known by the edge from its end to its beginning.
        and view.nodes[port.node].op not in NEXT_ITERATION_OPS
    }


def _depth(view: Graph, slots: SlotTable, shapes: Shapes, node: Node) -> int | None:
    """Return how many numbers one element of a node's output is the sum of."""

    def spec(port: Port) -> TensorSpec:
        return TensorSpec(known_shape(shapes, view, port), "float32")

    call = op_call_of(node, slots, spec)
    if any(spec.shape is None for spec in (*call.inputs[:1], *call.outputs[:1])):
        return None
    if node.op in _REDUCTIONS and call.inputs and call.outputs:
        return max(call.inputs[0].elements // max(call.outputs[0].elements, 1), 1)
    if node.op in SWITCH_OPS:
        return None
    try:
        works = works_of(call, "float32")
    except (ValueError, IndexError):
        return None
    return next((work.product.k for work in works if work.product), None)


@dataclasses.dataclass
class _GraphRanges:
    """A graph by the ranges of its tensors, and how often it has run.

    Of each tensor that had a value, `last_runs` has the run in which it last had one.
    """

    tensors: dict[str, TensorRange]
    runs: int = 0
    last_runs: dict[str, int] = dataclasses.field(default_factory=dict)


class Statistics:
    """Ranges of the tensors of several graphs; values come from several threads."""

    def __init__(self) -> None:
        """Begin without tensors."""
        self._graphs: list[_GraphRanges] = []
        self._lock = renewed_lock()

    def records_of(self, view: Graph, shapes: Shapes) -> Records:
        """Return the records that the ranges of another graph are made from."""
        graph = _GraphRanges(_tensors_in(view, shapes))
        self._graphs.append(graph)
        framed = {n.name for n in view.nodes if view.frame(n.index) is not None}
        loops = (n for n in view.nodes if n.op in ENTER_OPS)
        outermost = (n.name for n in loops if view.frame(n.inputs[0].node) is None)
        taps = (
            Tap(
                functools.partial(self.receive, graph, name),
                name,
                in_loop=tensor.node in framed,
            )
            for name, tensor in graph.tensors.items()
        )

        def begin(_: Array) -> None:
            with self._lock:
                graph.runs += 1

        return Records(tuple(taps), begin, frozenset(outermost))

    def receive(self, graph: _GraphRanges, name: str, value: Array) -> None:
        """Widen the range of a graph's tensor by a value that it has had."""
        part = range_of_values(graph.tensors[name], value)

        def summed(field: str) -> dict[str, int]:
            counts = getattr(seen, field)
            return {n: counts.get(n, 0) + m for n, m in getattr(part, field).items()}

        with self._lock:
            seen = graph.tensors[name]
            is_larger = part.largest > seen.largest or not seen.values
            is_new_run = graph.runs != graph.last_runs.get(name, 0)
            graph.last_runs[name] = graph.runs
            graph.tensors[name] = dataclasses.replace(
                seen,
                batches=seen.batches + is_new_run,
                largest=max(seen.largest, part.largest),
                largest_in=graph.runs if is_larger else seen.largest_in,
                smallest=min(seen.smallest, part.smallest),
                values=seen.values + part.values,
                nonzero=seen.nonzero + part.nonzero,
                not_finite=seen.not_finite + part.not_finite,
                overflow=summed("overflow"),
                underflow=summed("underflow"),
            )

    def ranges(self) -> Ranges:
        """Return the ranges so far; tensors that never came are left out."""
        tensors = (each for graph in self._graphs for each in graph.tensors.values())
        runs = (graph.runs for graph in self._graphs)
        return Ranges(
            tuple(each for each in tensors if each.values), max(runs, default=0)
        )


def range_of_values(seen: TensorRange, value: Array) -> TensorRange:
    """Return the range of one array for what was seen of its tensor.

    Nothing is counted twice where all is in range.
    """
    magnitude = np.abs(value).ravel()
    finite = np.isfinite(magnitude)
    lost = int(magnitude.size - np.count_nonzero(finite))
    if lost:
        magnitude = magnitude[finite]
    largest = float(magnitude.max(initial=0.0))
    positive = magnitude[magnitude > 0.0]
    smallest = float(positive.min(initial=math.inf))
    return dataclasses.replace(
        seen,
        largest=largest,
        smallest=smallest,
        values=int(value.size),
        nonzero=int(positive.size),
        not_finite=lost,
        overflow={
            name: int(np.count_nonzero(magnitude >= limit)) if largest >= limit else 0
            for name, limit in _OVERFLOW.items()
        },
        underflow={
            name: int(np.count_nonzero(positive <= limit)) if smallest <= limit else 0
            for name, limit in _UNDERFLOW.items()
        },
    )
