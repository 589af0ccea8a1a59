"""Run a script and look at its graphs: verify them, or see what ranges they keep to."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import GraphView, Item
from grappler_pass.planning.draft import Settings
from tf_amp.config.ranges import Ranges
from tf_amp.rewriting import host
from tf_amp.rewriting.compiled.uncompiled import WithoutXla
from tf_amp.tools import running_scripts
from tf_amp.tools.graph_runs.cases import Case
from tf_amp.tools.ranges.ranging import records_of
from tf_amp.tools.ranges.recording import Recorder, with_records
from tf_amp.tools.ranges.statistics import Statistics
from tf_amp.tools.verify.capturing import Captures, is_recording


@dataclasses.dataclass(frozen=True)
class Script:
    """A script with its arguments; `seconds` ends it, None lets it end by itself."""

    path: str
    arguments: Sequence[str] = ()
    seconds: float | None = None


def captured_cases(
    script: Script, environment: dict[str, str]
) -> tuple[tuple[Case, ...], dict[str, str]]:
    """Run a script in float32 and return its graphs with what they first got.

    Also, by name, those that cannot be run again, with the reason.
    """
    captures = Captures()
    _run(script, environment, captures.observe, captures.without_xla)
    return captures.cases(), captures.skipped


def ranges_of_script(script: Script, environment: dict[str, str]) -> Ranges:
    """Run a script in float32 and return the ranges of its graphs over all steps."""
    statistics = Statistics()
    recorder = Recorder(statistics.record)

    def observe(
        graph_def: GraphDef,
        item: Item,
        shapes: Callable[[], Shapes],
        name: str,
        settings: Settings,
    ) -> GraphDef | None:
        if is_recording(graph_def) or settings.fuses:
            return None
        view = GraphView.from_graph_def(graph_def, item)
        records = records_of(view, shapes(), statistics)
        return with_records(graph_def, records, recorder)

    _run(script, environment, observe, WithoutXla())
    return statistics.ranges()


def _run(
    script: Script,
    environment: dict[str, str],
    observer: host.Observer,
    without_xla: WithoutXla,
) -> None:
    """Run a script to its end or that of its time; the end itself is no error."""
    host.current().observers.append(observer)
    host.current().without_xla.append(without_xla)
    running_scripts.switch_on(environment)
    code = running_scripts.run_limited(script.path, script.arguments, script.seconds)
    if code:
        print(f"tf-amp: the script ended with {code!r}.", file=sys.stderr)
