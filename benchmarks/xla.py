"""Training steps compiled by XLA, and what rewriting such a function takes.

Float32, Keras' policy and tf-amp take turns in fresh processes; each compiles the same
step with ``jit_compile=True``.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

import tensorflow as tf
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.catalog import entry, variant
from benchmarks.driver import ROOT, worker_environment
from benchmarks.machine import this_machine
from benchmarks.steps import build_model, step_of
from benchmarks.variants import PREPARATIONS
from benchmarks.worker import time_steps

_MODELS = ("mlp", "bert")
_VARIANTS = ("float32", "keras", "ours")
_LARGE = "resnet50"
_WARM_STEPS = 3


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is named, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.xla")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--worker", nargs=2, metavar=("MODEL", "VARIANT"))
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(_work(*options.worker, options.seconds)))
        return
    figures = _measure(options.rounds, options.seconds)
    Console().print(_table(figures))
    seconds, nodes = _rewriting_seconds()
    machine = this_machine()
    print(f"{machine.processor} ({machine.kind}), {machine.cores} cores")
    print(
        f"rewriting a function of {nodes} nodes: {seconds:.2f} s of processor time, "
        f"{seconds / nodes * 1e4:.2f} s per 10,000 nodes"
    )


def _measure(rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Return the median seconds of a step by model, variant and round."""
    found: dict[str, dict[str, list[float]]] = {
        model: {name: [] for name in _VARIANTS} for model in _MODELS
    }
    with Progress() as progress:
        total = len(_MODELS) * rounds * len(_VARIANTS)
        task = progress.add_task("xla", total=total)
        for model in _MODELS:
            for number in range(rounds):
                first = number % len(_VARIANTS)
                for name in _VARIANTS[first:] + _VARIANTS[:first]:
                    progress.update(task, description=f"{model}, {name}")
                    found[model][name].append(_run_worker(model, name, seconds))
                    progress.advance(task)
    return found


def _run_worker(model: str, name: str, seconds: float) -> float:
    command = (sys.executable, "-m", "benchmarks.xla", "--worker", model, name)
    done = subprocess.run(
        [*command, "--seconds", str(seconds)],
        env=worker_environment(variant(name)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["step_seconds"])


def _work(model_name: str, variant_name: str, seconds: float) -> dict[str, float]:
    """Return the median step of one variant, in this process."""
    PREPARATIONS[variant(variant_name).prepare]()
    model_entry = entry(model_name)
    model = build_model(model_entry)
    step = step_of(model, model_entry, "train", jit_compile=True)
    for _ in range(_WARM_STEPS):
        step()
    return {"step_seconds": median(time_steps(step, seconds=seconds))}


def _table(figures: dict[str, dict[str, list[float]]]) -> Table:
    table = Table("model", *(f"{name} ms" for name in _VARIANTS), *_VARIANTS[1:])
    for model, by_variant in figures.items():
        medians = [median(by_variant[name]) for name in _VARIANTS]
        base = by_variant["float32"]
        ratios = [
            [a / b for a, b in zip(base, by_variant[name], strict=True)]
            for name in _VARIANTS[1:]
        ]
        table.add_row(
            model,
            *(f"{1e3 * seconds:.1f}" for seconds in medians),
            *(f"{median(r):.2f} ({min(r):.2f}-{max(r):.2f})" for r in ratios),
        )
    return table


def _rewriting_seconds() -> tuple[float, int]:
    """Return what rewriting adds to the trace of a large step, and its nodes.

    The plan is made for a GPU, so that there is something to rewrite.
    """
    import tf_amp
    from tf_amp.xla import functions

    tf_amp.enable(device_profile="v100", opt_level="O2", tune="off", loss_scale="none")
    model_entry = entry(_LARGE)
    model = build_model(model_entry)
    step = step_of(model, model_entry, "train", jit_compile=True)
    spent: list[float] = []
    rewrite = functions._rewrite

    def timed(function: object, graph: object) -> None:
        begin = time.process_time()
        rewrite(function, graph)
        spent.append(time.process_time() - begin)

    functions._rewrite = timed
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, step.arguments)
    concrete = step.function.get_concrete_function(*specs)
    functions._rewrite = rewrite
    return spent[-1], len(concrete.graph.get_operations())


if __name__ == "__main__":
    main()
