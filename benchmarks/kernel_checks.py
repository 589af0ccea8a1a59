"""What it takes to check the kernels of a model: python -m benchmarks.kernel_checks.

Two processes train a step of each model, one after the other, the first with an empty
cache. At O2, so that every kernel that may be used is. What ships with tf-amp for this
machine is left aside.
"""

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.announcing import announcing
from benchmarks.catalog import Entry, entry
from benchmarks.processes import worker_environment, worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish

_MORE = (
    Entry("mobilenet_v2", "MobileNetV2", "sgd", 16, 32),
    Entry("u_net", "U-Net", "sgd", 8, 16),
)
_NAMES = "resnet50 mobilenet_v2 bert u_net mlp".split()
_TITLES = ("model", "level", "first process s", "second s", "refused", "not checked")
_EXPLANATION = (
    "A training step in fresh processes, the first with an empty cache: seconds in "
    "checks of kernels. *refused*: operations that stay float32 since their kernel is "
    "wrong, by the table or the check. *not checked*: after the first, and after the "
    "second process."
)


@dataclasses.dataclass(frozen=True)
class Checked:
    """What one process found.

    Attributes:
      seconds: in checks.
      refused: operations whose kernel is wrong.
      unchecked: what the plan says of kernels that were not checked.
    """

    seconds: float
    refused: int
    unchecked: str


def main() -> None:
    """Measure, print, and write the section of RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_checks")
    parser.add_argument("--models", type=lambda text: text.split(","), default=_NAMES)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--level", default="O2")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(dataclasses.asdict(train(options.one))))
        return
    rows = []
    with announcing(2 * len(options.models)) as announce:
        for name in options.models:
            rows.append(_row(name, options.dtype, options.level, announce))
    table = f"{_EXPLANATION}\n\n{markdown_table(_TITLES, rows)}"
    publish("kernel_checks", table, rows, is_whole=options.models == _NAMES)


def _row(
    name: str, dtype: str, level: str, announce: Callable[[str], Any]
) -> tuple[str, ...]:
    found = []
    with tempfile.TemporaryDirectory() as cache:
        settings = {
            "TF_ENABLE_AUTO_MIXED_PRECISION": dtype,
            "TF_AMP_OPT_LEVEL": level,
            "TF_AMP_CACHE": cache,
        }
        for number in (1, 2):
            announce(f"{name}, process {number}")
            environment = {**worker_environment(), **settings}
            arguments = ("--one", name)
            lines = worker_lines("kernel_checks", *arguments, environment=environment)
            found.append(Checked(**json.loads(lines[-1])))
    first, second = found
    return (
        _entry(name).title,
        f"{level}, {dtype}",
        f"{first.seconds:.2f}",
        f"{second.seconds:.2f}",
        str(second.refused),
        f"{first.unchecked or 'none'}, {second.unchecked or 'none'}",
    )


def _entry(name: str) -> Entry:
    return next((each for each in _MORE if each.name == name), None) or entry(name)


def train(name: str) -> Checked:
    """Train a step of a model and return what its checks took and found."""
    from benchmarks.steps import build_model, step_of
    from grappler_pass.planning.plan import Cause
    from tf_amp.checking import known, outcomes
    from tf_amp.rewriting import host

    seconds, plans = [0.0], []
    check = known.CheckedKernels.check

    def timed(self: Any, kernels: Any) -> bool:
        start = time.perf_counter()
        is_wrong = check(self, kernels)
        seconds[0] += time.perf_counter() - start
        return is_wrong

    known.CheckedKernels.check = timed  # type: ignore[method-assign]
    outcomes.shipped = lambda machine: {}
    host.current().watchers.append(lambda rewrite: plans.append(rewrite.plan))
    described = _entry(name)
    step_of(build_model(described), described, "train")()
    decisions = [d for plan in plans if plan for d in plan.decisions]
    refused = {d.slot.node for d in decisions if d.reason.cause is Cause.WRONG_KERNEL}
    unchecked = [plan.unchecked for plan in plans if plan and plan.unchecked]
    return Checked(seconds[0], len(refused), "; ".join(unchecked))


if __name__ == "__main__":
    main()
