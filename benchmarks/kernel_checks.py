"""What it takes to check the kernels of a model: python -m benchmarks.kernel_checks.

Two processes train a step of each model, one after the other, the first with an empty
cache. At O2, so that every kernel that may be used is. What ships with tf-amp for this
machine is left aside.

With --ship NAME, the kernels of all models of the benchmarks are checked in both types,
training and inference, without a limit of time, and the outcomes written to where
tf-amp ships them.
"""

import argparse
import dataclasses
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.announcing import announcing
from benchmarks.catalog import MODELS, MODES, Entry, entry
from benchmarks.processes import worker_environment, worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish
from tf_amp.config.amp_config import LOW_DTYPES

_MORE = (
    Entry("mobilenet_v2", "MobileNetV2", "sgd", 16, 32),
    Entry("u_net", "U-Net", "sgd", 8, 16),
)
_NAMES = "resnet50 mobilenet_v2 bert u_net mlp".split()
SHIPPED = Path(__file__).resolve().parents[1] / "tf_amp" / "compare" / "shipped"
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
    parser.add_argument("--ship", metavar="NAME", help="of a file to write")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(dataclasses.asdict(run_step(options.one, options.mode))))
        return
    if options.ship:
        ship(options.ship)
        return
    rows = []
    with announcing(2 * len(options.models)) as announce:
        for name in options.models:
            rows.append(_row(name, options.dtype, options.level, announce))
    table = f"{_EXPLANATION}\n\n{markdown_table(_TITLES, rows)}"
    publish("kernel_checks", table, rows, is_whole=options.models == _NAMES)


def ship(name: str) -> None:
    """Check the kernels of all models, and write what comes of it for others."""
    with tempfile.TemporaryDirectory() as cache:
        for model, mode, dtype in itertools.product(MODELS, MODES, LOW_DTYPES):
            _run(model.name, mode, dtype, "O2", {"CACHE": cache, "TUNE": "off"})
        (file,) = Path(cache).glob("kernels/*.json")
        SHIPPED.mkdir(exist_ok=True)
        shutil.copyfile(file, SHIPPED / f"{name}.json")


def _run(
    name: str, mode: str, dtype: str, level: str, settings: Mapping[str, str]
) -> Checked:
    own = {f"TF_AMP_{key}": value for key, value in settings.items()}
    switched = {"TF_ENABLE_AUTO_MIXED_PRECISION": dtype, "TF_AMP_OPT_LEVEL": level}
    environment = {**worker_environment(), **switched, **own}
    arguments = ("--one", name, "--mode", mode)
    lines = worker_lines("kernel_checks", *arguments, environment=environment)
    return Checked(**json.loads(lines[-1]))


def _row(
    name: str, dtype: str, level: str, announce: Callable[[str], Any]
) -> tuple[str, ...]:
    found = []
    with tempfile.TemporaryDirectory() as cache:
        for number in (1, 2):
            announce(f"{name}, process {number}")
            found.append(_run(name, "train", dtype, level, {"CACHE": cache}))
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


def run_step(name: str, mode: str) -> Checked:
    """Run the first step of a model and return what its checks took and found."""
    from benchmarks.steps import build_model, step_of
    from grappler_pass.planning.plan import Cause
    from tf_amp.compare import known_kernels as known
    from tf_amp.rewriting import host

    seconds, plans = [0.0], []
    check = known.KnownKernels.check

    def timed(self: Any, kernels: Any) -> bool:
        start = time.perf_counter()
        is_wrong = check(self, kernels)
        seconds[0] += time.perf_counter() - start
        return is_wrong

    known.KnownKernels.check = timed  # type: ignore[method-assign]
    known.shipped = lambda machine: {}
    host.current().watchers.append(lambda rewrite: plans.append(rewrite.plan))
    described = _entry(name)
    step_of(build_model(described), described, mode)()
    decisions = [d for plan in plans if plan for d in plan.decisions]
    refused = {d.slot.node for d in decisions if d.reason.cause is Cause.WRONG_KERNEL}
    unchecked = [plan.unchecked for plan in plans if plan and plan.unchecked]
    return Checked(seconds[0], len(refused), "; ".join(unchecked))


if __name__ == "__main__":
    main()
