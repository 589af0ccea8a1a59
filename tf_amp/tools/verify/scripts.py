"""Run a script and look at its graphs: verify them, or see what ranges they keep to.

Grappler's callback has the graph that will run: what comes in from outside (arguments,
data, variables before they change) is recorded there, and run again later. The program
goes on in float32.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.fork_safety import renewed_lock
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import GraphView, Item
from grappler_pass.planning.draft import Settings
from tf_amp.config.ranges import Ranges
from tf_amp.errors import NotMeasurableError
from tf_amp.measuring.sandbox.contents import Content
from tf_amp.rewriting import host
from tf_amp.rewriting.compiled.uncompiled import Uncompiled, WithoutXla
from tf_amp.tools import running_scripts
from tf_amp.tools.graph_runs.differences import Array
from tf_amp.tools.graph_runs.executing import Case, sandbox_of
from tf_amp.tools.ranges.ranging import Statistics, records_of
from tf_amp.tools.ranges.recording import (
    DEREFERENCE,
    READ,
    RECORDER,
    Record,
    Recorder,
    Records,
    Tap,
    with_records,
)
from tf_amp.tools.verify.function_cases import case_from_traced, watched
from tf_amp.tracing.grappler_preview import with_bodies
from tf_amp.tracing.traces import with_traced_shapes


def captured_cases(
    run: Callable[[], object], environment: dict[str, str]
) -> tuple[tuple[Case, ...], dict[str, str]]:
    """Run a script in float32 and return its graphs with what they first got.

    Also, by name, those that cannot be run again, with the reason.
    """
    found = Captures()
    _run(run, environment, found.records_of, found.record, found.without_xla)
    return found.cases(), found.skipped


def ranges_of_script(run: Callable[[], object], environment: dict[str, str]) -> Ranges:
    """Run a script in float32 and return the ranges of its graphs over all steps."""
    statistics = Statistics()

    def ranges_of(case: Case) -> Records | None:
        if case.settings.fuses:
            return None
        view = GraphView.from_graph_def(case.graph_def, case.item)
        return records_of(view, case.shapes, statistics)

    _run(run, environment, ranges_of, statistics.record, WithoutXla())
    return statistics.ranges()


def _run(
    run: Callable[[], object],
    environment: dict[str, str],
    records_of_case: Callable[[Case], Records | None],
    record: Record,
    without_xla: WithoutXla,
) -> None:
    """Run a script to its end or that of its time; the end itself is no error.

    Of each graph that arrives, without values yet, is recorded what is to be; None: it
    runs as it is.
    """
    recorder = Recorder(record)

    def observe(
        graph_def: GraphDef,
        item: Item,
        shapes: Callable[[], Shapes],
        name: str,
        settings: Settings,
    ) -> GraphDef | None:
        # It tells of its tensors already.
        if any(f"/{RECORDER}_" in node.name for node in graph_def.node):
            return None
        case = Case(graph_def, item, shapes(), settings, {}, name=name)
        records = records_of_case(case)
        return records and with_records(graph_def, records, recorder)

    host.current().observers.append(observe)
    host.current().without_xla.append(without_xla)
    running_scripts.switch_on(environment)
    if code := run():
        print(f"tf-amp: the script ended with {code!r}.", file=sys.stderr)


@dataclasses.dataclass(eq=False)
class _Captured:
    """A graph that is going to run, and what it has got so far."""

    case: Case
    # Of the function that XLA would have compiled; None for a graph as it is.
    compiled: Uncompiled | None = None
    values: dict[str, Array] = dataclasses.field(default_factory=dict)

    def complete(self) -> Case:
        """Return the case with all that it has got."""
        if self.compiled is None:
            return dataclasses.replace(self.case, values=dict(self.values))
        values = {}
        for name, value in self.values.items():
            argument, colon, output = name.partition(":")
            if argument in self.compiled.arguments:
                placeholder = self.compiled.arguments[argument]
                values[f"{placeholder}{colon}{output}"] = value
        return case_from_traced(self.compiled.graph, values)


class Captures:
    """The graphs of a program with their first inputs, in the order they came."""

    def __init__(self) -> None:
        """Begin without graphs."""
        self._found: list[_Captured] = []
        self._place: list[tuple[_Captured, str]] = []
        self._lock = renewed_lock()
        self.skipped: dict[str, str] = {}
        self.without_xla = WithoutXla()

    def records_of(self, case: Case) -> Records | None:
        """Return what a graph that is going to run gets; None for one that cannot."""
        if case.settings.fuses:
            self.skipped[case.name] = "it has operations that XLA alone can run"
            return None
        whole = with_bodies(case.graph_def)
        known = with_traced_shapes(whole, case.shapes)
        case = watched(dataclasses.replace(case, graph_def=whole, shapes=known))
        try:
            contents = sandbox_of(whole, case.item, known, {}).contents
        except NotMeasurableError as error:
            self.skipped[case.name] = str(error)
            return None
        return Records(self._taps(case, contents))

    def cases(self) -> tuple[Case, ...]:
        """Return the graphs that have run, with what they got."""
        return tuple(found.complete() for found in self._found if found.values)

    def _taps(self, case: Case, contents: tuple[Content, ...]) -> tuple[Tap, ...]:
        captured = _Captured(case, self.without_xla.behind(case.graph_def))
        with self._lock:
            first = len(self._place)
            self._found.append(captured)
            self._place.extend((captured, content.name) for content in contents)
        taps = []
        for number, content in enumerate(contents, first):
            # The op that reads a content.
            holder = READ if content.is_state else ""
            holder = DEREFERENCE if content.is_reference else holder
            taps.append(Tap(number, content.name, content.dtype, holder))
        return tuple(taps)

    def record(self, number: Array, value: Array) -> None:
        """Keep a value, unless the graph has run before."""
        captured, name = self._place[int(number)]
        if name not in captured.values:
            captured.values[name] = np.array(value)
