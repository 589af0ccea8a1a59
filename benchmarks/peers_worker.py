"""One process of ``benchmarks.peers``: a model in a mode, in one of the frameworks.

It is one of `benchmarks.living`; its first line is the version of its framework. With
the method `PRODUCTS` it times one large product instead, and its first line is how many
of these the step would take.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from benchmarks.catalog import Entry, entry
from benchmarks.living import only_answers, time_as_told

# By the name in the table; what follows the colon is how PyTorch runs it.
AUTOCAST, COMPILED, PRODUCTS = "autocast", "compiled", "products"
_WARM_STEPS = 5

Step = Callable[[], object]


def main() -> None:
    """Do what the command line names: a model, a mode, a framework and a method."""
    answers = only_answers()
    model, mode, framework, method = sys.argv[1:]
    make = _torch_step if framework == "torch" else _tensorflow_step
    make = _product if method == PRODUCTS else make
    step, wait, told = make(entry(model), mode, method)
    print(told, file=answers, flush=True)
    time_as_told(step, wait, answers)


def _torch_step(model: Entry, mode: str, method: str) -> tuple[Step, Step, str]:
    import torch
    from torch.nn import functional

    from benchmarks.torch_models import TORCH_MODELS

    torch.manual_seed(0)
    # As many as TensorFlow takes.
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    described = TORCH_MODELS[model.name]
    network = described.build().train(mode == "train")
    inputs, targets = described.batch(model.batch(mode))
    run = torch.compile(network) if method == COMPILED else network
    parameters = network.parameters()
    optimizer: torch.optim.Optimizer
    if model.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, 1e-2)
    else:
        optimizer = torch.optim.Adam(parameters, 1e-3, fused=True)
    is_low = method != "float32"

    def outputs() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
            found: torch.Tensor = run(inputs)
        return found.float()

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        found = outputs()
        rows = found.reshape(-1, found.shape[-1])
        functional.cross_entropy(rows, targets.reshape(-1)).backward()
        optimizer.step()

    def infer() -> None:
        with torch.no_grad() if method == COMPILED else torch.inference_mode():
            outputs()

    step = train if mode == "train" else infer
    for _ in range(_WARM_STEPS):
        step()
    return step, lambda: None, f"torch {torch.__version__}"


def _tensorflow_step(model: Entry, mode: str, method: str) -> tuple[Step, Step, str]:
    import tensorflow as tf

    from benchmarks.steps import build_model, run_until_decided, step_of
    from benchmarks.variants import switch_on

    switch_on(method)
    step = step_of(build_model(model), model, mode)
    run_until_decided(step, fewest=_WARM_STEPS)
    wait = tf.test.experimental.sync_devices
    return step, wait, f"tensorflow {tf.__version__}"


def _product(model: Entry, mode: str, method: str) -> tuple[Step, Step, str]:
    import tensorflow as tf

    from benchmarks.products import best_product, count_in_best_products
    from benchmarks.steps import build_model, step_of

    count = count_in_best_products(step_of(build_model(model), model, mode))
    step = best_product()
    for _ in range(_WARM_STEPS):
        step()
    return step, tf.test.experimental.sync_devices, str(count)


if __name__ == "__main__":
    main()
