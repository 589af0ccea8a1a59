"""Training steps compiled by XLA, and what rewriting such a function takes.

Float32, Keras' policy and tf-amp take turns in fresh processes; each compiles the same
step with ``jit_compile=True``. Beside the time of a step stands the processor time that
it takes, which holds on a busy machine too.
"""

import argparse
import json
import time
from statistics import median

import tensorflow as tf

from benchmarks.announcing import announcing
from benchmarks.catalog import entry, variant
from benchmarks.processes import worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.steps import build_model, seconds_of, step_of
from benchmarks.variants import switch_on

_MODELS = ("mlp", "bert")
_VARIANTS = ("float32", "keras", "ours")
_LARGE = "resnet50"
_WARM_STEPS, _FEWEST_STEPS = 3, 5
_TITLES = (
    "model",
    "time",
    *(f"{name} ms" for name in _VARIANTS),
    *(f"{name}: times as fast" for name in _VARIANTS[1:]),
)
_EXPLANATION = (
    "A training step under `jit_compile=True`. *keras*: its mixed_bfloat16 policy; "
    "*ours*: tf-amp. *step*: median time of a step; *processor*: processor time of "
    "one, on all cores. *times as fast*: as float32; median of the rounds, in brackets "
    "the lowest and highest."
)

# Model, variant, rounds, and in each what a step takes.
Figures = dict[str, dict[str, list[dict[str, float]]]]


def main() -> None:
    """Measure, print, and write the section of RESULTS.md on XLA."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.xla")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--worker", nargs=2, metavar=("MODEL", "VARIANT"))
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(_work(*options.worker, options.seconds)))
        return
    figures = _measure(options.rounds, options.seconds)
    seconds, nodes = _rewriting_seconds()
    told = (
        f"Rewriting a function of {nodes:,} nodes ({_LARGE}, a training step planned "
        f"for a V100) takes {seconds:.2f} s of processor time: "
        f"{seconds / nodes * 1e4:.2f} s per 10,000 nodes."
    )
    table = "\n\n".join((markdown_table(_TITLES, _rows(figures)), _EXPLANATION, told))
    samples = {"steps": figures, "rewriting": {"seconds": seconds, "nodes": nodes}}
    publish("xla", table, samples, rounds=options.rounds)


def _measure(rounds: int, seconds: float) -> Figures:
    """Return what each worker reports, by model and variant, round by round."""
    found: Figures = {model: {name: [] for name in _VARIANTS} for model in _MODELS}
    with announcing(len(_MODELS) * rounds * len(_VARIANTS)) as announce:
        for model in _MODELS:
            for number in range(rounds):
                first = number % len(_VARIANTS)
                for name in _VARIANTS[first:] + _VARIANTS[:first]:
                    announce(f"{model}, {name}")
                    found[model][name].append(_run_worker(model, name, seconds))
    return found


def _run_worker(model: str, name: str, seconds: float) -> dict[str, float]:
    lines = worker_lines("xla", "--worker", model, name, "--seconds", str(seconds))
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def _work(model_name: str, variant_name: str, seconds: float) -> dict[str, float]:
    """Return what a step of one variant takes, in this process."""
    switch_on(variant(variant_name).method)
    model_entry = entry(model_name)
    model = build_model(model_entry)
    step = step_of(model, model_entry, "train", jit_compile=True)
    for _ in range(_WARM_STEPS):
        step()
    begin = time.process_time()
    times: list[float] = []
    while len(times) < _FEWEST_STEPS or sum(times) < seconds:
        times.append(seconds_of(step))
    processor = (time.process_time() - begin) / len(times)
    return {"step": median(times), "processor": processor}


def _rows(figures: Figures) -> list[tuple[str, ...]]:
    return [
        _cells(model, kind, by_variant)
        for model, by_variant in figures.items()
        for kind in ("step", "processor")
    ]


def _cells(
    model: str, kind: str, by_variant: dict[str, list[dict[str, float]]]
) -> tuple[str, ...]:
    by_name = {name: [run[kind] for run in by_variant[name]] for name in _VARIANTS}
    return (
        entry(model).title,
        kind,
        *(f"{1e3 * median(by_name[name]):.1f}" for name in _VARIANTS),
        *(_ratio_text(by_name, name) for name in _VARIANTS[1:]),
    )


def _ratio_text(by_name: dict[str, list[float]], name: str) -> str:
    """Return how many times as fast as float32 a variant is, with the extremes."""
    pairs = zip(by_name["float32"], by_name[name], strict=True)
    ratios = [base / found for base, found in pairs]
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def _rewriting_seconds() -> tuple[float, int]:
    """Return what rewriting adds to the trace of a large step, and its nodes.

    The plan is made for a GPU, so that there is something to rewrite.
    """
    import tf_amp
    from tf_amp.rewriting import compiled

    tf_amp.enable(device_profile="v100", opt_level="O2", tune="off", loss_scale="none")
    model_entry = entry(_LARGE)
    model = build_model(model_entry)
    step = step_of(model, model_entry, "train", jit_compile=True)
    spent: list[float] = []
    rewrite = compiled._rewrite

    def timed(function: object, graph: object) -> None:
        begin = time.process_time()
        rewrite(function, graph)
        spent.append(time.process_time() - begin)

    compiled._rewrite = timed
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, step.arguments)
    concrete = step.function.get_concrete_function(*specs)
    compiled._rewrite = rewrite
    return spent[-1], len(concrete.graph.get_operations())


if __name__ == "__main__":
    main()
