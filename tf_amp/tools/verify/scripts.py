"""Run a script and look at its graphs: verify them, or see what ranges they keep to.

Grappler's callback has the graph that will run: what comes in from outside (arguments,
data, variables before they change) is recorded there, and run again later. The program
goes on in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import GraphView, Item
from grappler_pass.planning.draft import Settings
from tf_amp.config.ranges import Ranges
from tf_amp.errors import NotMeasurableError
from tf_amp.rewriting import host
from tf_amp.rewriting.compiled import Uncompiled, WithoutXla
from tf_amp.run import recording
from tf_amp.run.graph_cases import GraphCase, sandbox_of
from tf_amp.run.graph_copy import Array, Content
from tf_amp.run.recording import Records, Tap
from tf_amp.tools import running_scripts
from tf_amp.tools.ranges.ranging import Statistics
from tf_amp.tools.verify.function_cases import case_from_traced, watched
from tf_amp.tracing.grappler_preview import with_bodies
from tf_amp.tracing.stamp_reader import with_traced_shapes


def captured_cases(
    run: Callable[[], object], environment: Mapping[str, str | None]
) -> tuple[tuple[GraphCase, ...], dict[str, str]]:
    """Run a script in float32 and return its graphs with what they first got.

    They are in the order they came. Also, by name, those that cannot be run again, with
    the reason.
    """
    found: list[_Captured] = []
    skipped: dict[str, str] = {}
    without_xla = WithoutXla()

    def records_of(case: GraphCase) -> Records | None:
        if case.settings.fuses:
            skipped[case.name] = "it has operations that XLA alone can run"
            return None
        whole = with_bodies(case.graph_def)
        known = with_traced_shapes(whole, case.shapes)
        case = watched(dataclasses.replace(case, graph_def=whole, shapes=known))
        try:
            contents = sandbox_of(case, whole, {}).contents
        except NotMeasurableError as error:
            skipped[case.name] = str(error)
            return None
        captured = _Captured(case, without_xla.behind(whole))
        found.append(captured)
        return Records(tuple(map(captured.tap, contents)))

    _run(run, environment, records_of, without_xla)
    return tuple(each.complete() for each in found if each.values), skipped


def ranges_of_script(
    run: Callable[[], object], environment: Mapping[str, str | None]
) -> Ranges:
    """Run a script in float32 and return the ranges of its graphs over all steps."""
    statistics = Statistics()

    def records_of(case: GraphCase) -> Records | None:
        if case.settings.fuses:
            return None
        view = GraphView.from_graph_def(case.graph_def, case.item, case.settings.home)
        return statistics.records_of(view, case.shapes)

    _run(run, environment, records_of, WithoutXla())
    return statistics.ranges()


def _run(
    run: Callable[[], object],
    environment: Mapping[str, str | None],
    records_of: Callable[[GraphCase], Records | None],
    without_xla: WithoutXla,
) -> None:
    """Run a script to its end or that of its time; the end itself is no error.

    Of each graph that arrives, without values yet, is recorded what is to be; None: it
    runs as it is.
    """
    recorder = recording.Recorder()

    def observe(
        graph_def: GraphDef,
        item: Item,
        shapes: Callable[[], Shapes],
        name: str,
        settings: Settings,
    ) -> GraphDef | None:
        # It reports its tensors already.
        if any(f"/{recording.RECORDER}_" in node.name for node in graph_def.node):
            return None
        records = records_of(
            GraphCase(graph_def, item, shapes(), settings, {}, name=name)
        )
        return records and recording.with_records(graph_def, records, recorder)

    host.current().observers.append(observe)
    host.current().without_xla.append(without_xla)
    running_scripts.switch_on(environment)
    run()


@dataclasses.dataclass(eq=False)
class _Captured:
    """A graph that is going to run, and what it has got so far."""

    case: GraphCase
    # Of the function that XLA would have compiled; None for a graph as it is.
    compiled: Uncompiled | None = None
    values: dict[str, Array] = dataclasses.field(default_factory=dict)

    def tap(self, content: Content) -> Tap:
        """Return what records the first value of one of the graph's contents."""

        def keep(value: Array) -> None:
            # The graph may have run before.
            if content.name not in self.values:
                self.values[content.name] = np.array(value)

        # The op that reads a content.
        holder = recording.READ if content.is_state else ""
        holder = recording.DEREFERENCE if content.is_reference else holder
        return Tap(keep, content.name, content.dtype, holder)

    def complete(self) -> GraphCase:
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
