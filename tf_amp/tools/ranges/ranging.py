"""Run a graph on batches of data and see what ranges its tensors keep to."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from grappler_pass.graph.op_table import ENTER_OPS
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import GraphView
from tf_amp.config.ranges import Ranges, TensorRange
from tf_amp.tools import progress
from tf_amp.tools.graph_runs import batches as data
from tf_amp.tools.graph_runs import executing
from tf_amp.tools.graph_runs.call_values import batch_by_placeholder
from tf_amp.tools.graph_runs.cases import Case, Values
from tf_amp.tools.ranges.recording import Recorder, Records, Tap, with_records
from tf_amp.tools.ranges.seen_tensors import seen_tensors
from tf_amp.tools.ranges.statistics import Statistics
from tf_amp.tools.verify.function_cases import plain_case


def ranges_of(
    function: Any, batches: Iterable[Any], *, fetches: Iterable[str] = ()
) -> Ranges:
    """Return the ranges of a graph's float32 tensors over all batches.

    The graph runs in float32, outside of its program: functions are inlined, variables
    have the values they have now, and nothing outside is touched.

    Args:
      function: a ConcreteFunction (a signature of a SavedModel), or a GraphDef.
      batches: each a mapping from names of inputs to arrays, a sequence of arrays by
        position, or one array; names are those of `specs_of(function)`, and for a
        GraphDef those of its placeholders.
      fetches: names of the nodes to run, for a GraphDef.

    Raises:
      UnfitDataError: a batch does not fit; the message names it and what is expected.
      NotMeasurableError: the graph cannot be run by itself; the message says why.
    """
    case = plain_case(function, fetches)
    taken = data.checked_batches(batches, data.specs_of(function))
    checked = progress.each(taken, "running batches")
    values = (batch_by_placeholder(function, batch) for batch in checked)
    return _ranges_of_case(case, values)


def joined(found: Iterable[Ranges]) -> Ranges:
    """Return the rows of several graphs together; of equal ones, only the first.

    Tensors of the same name are distinguished by what was seen of them: inlined, graphs
    that have nothing to do with each other use the same names.
    """
    rows: dict[str, list[TensorRange]] = {}
    batches = 0
    for each in found:
        batches = max(batches, each.batches)
        for seen in each.tensors:
            namesakes = rows.setdefault(seen.name, [])
            if seen not in namesakes:
                namesakes.append(seen)
    return Ranges(tuple(itertools.chain.from_iterable(rows.values())), batches)


def _ranges_of_case(case: Case, batches: Iterable[Values]) -> Ranges:
    """Run a case once for each batch."""
    statistics = Statistics()
    recorder = Recorder(statistics.record)
    view = GraphView.from_graph_def(case.graph_def, case.item)
    records = None
    for batch in batches:
        shaped = dataclasses.replace(case, values={**case.values, **batch})
        shaped = executing.with_run_shapes(shaped)
        values = executing.completed(shaped, (case.graph_def,))
        shapes = shaped.known_shapes
        records = records or records_of(view, shapes, statistics)
        sandbox = executing.sandbox_of(case.graph_def, case.item, shapes, values)
        recording = with_records(sandbox.graph_def, records, recorder)
        sandbox = dataclasses.replace(sandbox, graph_def=recording)
        executing.execute(sandbox, values, {})
    return statistics.ranges()


def records_of(view: GraphView, shapes: Shapes, statistics: Statistics) -> Records:
    """Return what to record of a graph so that its ranges are known."""
    tensors = seen_tensors(view, shapes)
    first, begin = statistics.add_graph(tuple(tensors.values()))
    framed = frozenset(n.name for n in view.nodes if view.frame(n.index) is not None)
    loops = (n for n in view.nodes if n.op in ENTER_OPS)
    outermost = (n.name for n in loops if view.frame(n.inputs[0].node) is None)
    taps = (
        Tap(number, text, in_loop=seen.node in framed)
        for number, (text, seen) in enumerate(tensors.items(), first)
    )
    return Records(tuple(taps), begin, frozenset(outermost))
