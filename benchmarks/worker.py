"""One process of the benchmark: build a model, run its steps, print the times.

Started by the driver as ``python -m benchmarks.worker``; prints one line of JSON.
"""

import argparse
import resource
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from benchmarks.catalog import Entry, Variant, entry, variant
from benchmarks.executed import count_executed_ops
from benchmarks.records import Measurement, Run, run_to_json
from benchmarks.steps import Step, build_model, step_of
from benchmarks.variants import PREPARATIONS
from tf_amp.measuring.budget import process_age
from tf_amp.measuring.steps.compared_calls import is_any_open

_SAMPLED_VALUES = 256
_WARM_STEPS = 3
_FEWEST_STEPS = 5
_MOST_COMPARING_SECONDS = 90.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the model and variant named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("variant")
    parser.add_argument("--round", type=int, default=0)
    parser.add_argument("--modes", default="train,infer")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args(arguments)
    run = run_variant(
        entry(options.model),
        variant(options.variant),
        modes=tuple(options.modes.split(",")),
        seconds=options.seconds,
        round_number=options.round,
    )
    print(run_to_json(run))


def run_variant(
    model_entry: Entry,
    chosen: Variant,
    *,
    modes: tuple[str, ...],
    seconds: float,
    round_number: int,
) -> Run:
    """Return the measurements of every mode, in this process."""
    PREPARATIONS[chosen.prepare]()
    model = build_model(model_entry)
    # Inference first: training changes the weights.
    measurements = [
        measure(step_of(model, model_entry, mode), mode, seconds=seconds)
        for mode in sorted(modes)
    ]
    return Run(
        model=model_entry.name,
        variant=chosen.name,
        round=round_number,
        measurements=tuple(measurements),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def measure(step: Step, mode: str, *, seconds: float) -> Measurement:
    """Warm the step up, look at its graph, and time it for ``seconds``."""
    first: list[np.ndarray] = []
    ops = count_executed_ops(lambda: first.append(step().numpy()))
    first_seconds = process_age()
    warm = first + [step().numpy() for _ in range(_WARM_STEPS)]
    _decide(step)
    values = np.ravel(warm) if mode == "train" else _sampled(first[0])
    return Measurement(
        mode=mode,
        step_seconds=tuple(time_steps(step, seconds=seconds)),
        values=tuple(float(value) for value in values),
        ops=ops,
        first_seconds=first_seconds,
    )


def _decide(step: Step) -> None:
    """Run steps until tf-amp has compared them: what follows is what a job has."""
    begin = time.perf_counter()
    while is_any_open() and time.perf_counter() - begin < _MOST_COMPARING_SECONDS:
        step()


def time_steps(step: Step, *, seconds: float) -> list[float]:
    """Return the time of each step run within ``seconds``, and of five at least."""
    times: list[float] = []
    while len(times) < _FEWEST_STEPS or sum(times) < seconds:
        start = time.perf_counter()
        step()
        tf.test.experimental.sync_devices()
        times.append(time.perf_counter() - start)
    return times


def _sampled(outputs: np.ndarray) -> np.ndarray:
    """Return values spread evenly over the outputs."""
    flat = outputs.ravel()
    return flat[np.linspace(0, flat.size - 1, _SAMPLED_VALUES, dtype=np.int64)]


if __name__ == "__main__":
    main()
