"""Plans of one real training step under every shipped profile, as text.

`tests/golden/step.pbtxt` is the graph of a small Keras convolutional network's training
step (convolution, batch normalization, dense, Adam) as Grappler passes it;
`python -m tests.golden_plans` writes the plans anew, to be reviewed as a diff.
"""

from __future__ import annotations

import json
import pathlib

from google.protobuf import text_format
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import DeviceProfile
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import plan_graph
from grappler_pass.planning.plan import Decision, Plan
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.devices import profile_dtype
from tf_amp.tools.target_device import Target

FOLDER = pathlib.Path(__file__).with_name("golden")


def plan_for(profile_name: str) -> Plan:
    """Return the plan of the stored step on the device of a shipped profile."""
    profile = DeviceProfile.load(profile_name)
    target = Target(profile, profile_dtype(profile))
    facts = json.loads((FOLDER / "step.json").read_text())
    shapes: Shapes = {
        name: tuple(None if s is None else tuple(s) for s in outputs)
        for name, outputs in facts["shapes"].items()
    }
    step = text_format.Parse((FOLDER / "step.pbtxt").read_text(), GraphDef())
    return plan_graph(
        target.placed(step),
        Item(fetch=tuple(facts["fetch"]), preserve=tuple(facts["preserve"])),
        target.settings(AmpConfig()),
        shapes=lambda: shapes,
        name="step",
    )


def text_from_plan(plan: Plan) -> str:
    """Return the summary, and one line for each slot that costs decided."""
    rows = [row for row in plan.decisions if row.seconds_low is not None]
    return "\n".join([plan.summary(), *map(_line, rows)]) + "\n"


def _line(row: Decision) -> str:
    microseconds = [f"{1e6 * s:.1f}" for s in (row.seconds_float32, row.seconds_low)]
    cause = row.reason.cause.name.lower()
    return f"{row.slot} {row.op} {row.dtype} {cause} {' -> '.join(microseconds)} us"


def golden_path(profile_name: str) -> pathlib.Path:
    """Return where the plan for a profile is kept."""
    return FOLDER / f"{profile_name}.txt"


def main() -> None:
    """Write the plans of all shipped profiles."""
    for name in DeviceProfile.names():
        golden_path(name).write_text(text_from_plan(plan_for(name)))


if __name__ == "__main__":
    main()
