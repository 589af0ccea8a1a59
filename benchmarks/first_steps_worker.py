"""One process of the first steps: train a model for a while, and time each step.

Started by ``benchmarks.first_steps``; prints one line of JSON.
"""

import argparse
import dataclasses
import json

import tf_amp
from benchmarks.catalog import entry
from benchmarks.first_steps import WINDOW, Training
from benchmarks.steps import build_model, seconds_of, step_of
from tf_amp.rewriting import arriving_graphs


def main() -> None:
    """Train the model named on the command line, with tf-amp if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--compile", default="off")
    options = parser.parse_args()
    print(json.dumps(dataclasses.asdict(trained(options))))


def trained(options: argparse.Namespace) -> Training:
    """Return the first steps, as many as there is time for."""
    # Each instance of the graph arrives once.
    arrived = []
    if options.ours:
        rewrite = arriving_graphs.rewrite_graph

        def noting(data: bytes, item: object) -> bytes | None:
            arrived.append(len(seconds))
            return rewrite(data, item)

        arriving_graphs.rewrite_graph = noting
        tf_amp.enable(dtype="bfloat16", compile=options.compile)
    described = entry(options.model)
    # What says False is not compiled by tf-amp either.
    step = step_of(build_model(described), described, "train", jit_compile=None)
    seconds: list[float] = []
    arrived.clear()
    while len(seconds) < options.steps and (
        len(seconds) <= 2 * WINDOW or sum(seconds[1:]) < options.seconds
    ):
        seconds.append(seconds_of(step))
    return Training(tuple(seconds), tuple(sorted({0, *arrived})))


if __name__ == "__main__":
    main()
