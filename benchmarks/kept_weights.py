"""What keeping weights between calls gains: ``python -m benchmarks.kept_weights``.

Inference with live variables, by itself, by itself again, and rewritten without and
with keeping. All four take turns in one process, so that whatever else the machine does
falls on each.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from rich.progress import track

import tf_amp
from benchmarks.catalog import entry
from benchmarks.driver import worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.steps import Step, build_model, step_of
from benchmarks.turns import compared
from grappler_pass.fusions import KEPT_WEIGHTS, RULES

_CASES = (
    ("resnet50", 1),
    ("resnet50", 16),
    ("mobilenet_v3", 1),
    ("mobilenet_v3", 32),
    ("bert", 1),
    ("bert", 8),
    ("mlp", 64),
    ("mlp", 128),
    ("mlp", 512),
    ("wide_deep", 2048),
)
_ROUNDS = 15
_TITLES = ("model", "batch", "kept", "float32 ms", "A/A", "not kept", "tf-amp")
_EXPLANATION = (
    "Inference, prices deciding (`TF_AMP_TUNE=off`). *kept*: groups of values that "
    "hang on variables alone. *A/A*, *not kept*, *tf-amp*: speed-up over float32 of "
    "float32 again, of tf-amp without `kept_weights`, and with it: median of "
    f"{_ROUNDS} rounds, quartiles in brackets."
)

# Cells of the table, and seconds of the calls, round by round.
Row = tuple[tuple[str, ...], list[list[float]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the section of RESULTS.md on kept weights."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kept_weights")
    parser.add_argument(
        "--worker", nargs=2, metavar=("MODEL", "BATCH"), help="one process"
    )
    options = parser.parse_args(given)
    if options.worker:
        print(json.dumps(_row(options.worker[0], int(options.worker[1]))))
        return 0
    rows = [_measured(*case) for case in track(_CASES, "measuring")]
    table = markdown_table(_TITLES, [cells for cells, _ in rows])
    publish(
        "kept_weights",
        f"{table}\n\n{_EXPLANATION}",
        {" ".join(cells[:2]): samples for cells, samples in rows},
        given,
        rounds=_ROUNDS,
    )
    return 0


def _measured(name: str, batch: int) -> Row:
    """Measure one model in a process of its own."""
    lines = worker_lines("kept_weights", "--worker", name, str(batch))
    cells, seconds = json.loads(lines[-1])
    return tuple(cells), seconds


def _row(name: str, batch: int) -> Row:
    measured = dataclasses.replace(entry(name), infer_batch=batch)
    model = build_model(measured)

    def traced() -> Step:
        step = step_of(model, measured, "infer")
        step()
        return step

    plain, again = traced(), traced()
    others = tuple(rule for rule in RULES if rule != KEPT_WEIGHTS)
    tf_amp.enable(dtype="bfloat16", tune="off", strict=True, fuse=others)
    not_kept = traced()
    tf_amp.enable(dtype="bfloat16", tune="off", strict=True, fuse=RULES)
    kept = traced()
    tf_amp.disable()
    rules = [each.rule for plan in tf_amp.plans() for each in plan.fusions]
    count = str(rules.count(KEPT_WEIGHTS))
    timed = compared((plain, again, not_kept, kept), _ROUNDS)
    return (measured.title, str(batch), count, *timed.cells), timed.seconds


if __name__ == "__main__":
    sys.exit(main())
