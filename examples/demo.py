"""Train two small networks in float32 and in mixed precision, and compare them.

    python examples/demo.py            (or: make demo)

Both precisions train in one process, step by step in turn on the same batches from
the same initial weights, so that whatever else the machine does falls on both. The
models and their data are in ``demo_tasks.py``; the training step below is an ordinary
``tf.function``. The only difference between the two runs is whether ``tf_amp`` is
enabled when that function is traced.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, pairwise

import keras
import numpy as np
import tensorflow as tf
from demo_tasks import Batch, Task, digits_task, text_task
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import tf_amp
from tf_amp import Plan

SEED = 7
PRECISIONS = ("float32", "mixed")
UNTIMED_STEPS = 5
# Layers that are listed.
TOP = 8


@dataclass(frozen=True)
class Runner:
    """One model being trained in one precision, and the seconds of its steps."""

    task: Task
    step: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    count_right: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    seconds: list[float] = field(default_factory=list)

    def run(self, batch: Batch) -> float:
        """Run a training step, note how long it took, and return its loss."""
        start = time.perf_counter()
        loss = float(self.step(*batch))
        self.seconds.append(time.perf_counter() - start)
        return loss

    def accuracy(self) -> float:
        """Return the share of the labels held back that are predicted right."""
        inputs, labels = self.task.held_back
        right = sum(
            int(self.count_right(inputs[start:end], labels[start:end]))
            for start, end in pairwise(range(0, len(labels) + 1, self.task.batch_size))
        )
        return right / int(tf.size(labels))


def build_runner(task: Task) -> Runner:
    """Return a fresh model with its training step and its evaluation."""
    keras.utils.set_random_seed(SEED)
    model = task.build()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    warmup = max(1, task.steps // 20)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, task.steps - warmup, warmup_target=task.rate, warmup_steps=warmup
    )
    optimizer = keras.optimizers.Adam(rate, beta_2=0.98, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def count_right(inputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        predicted = tf.argmax(model(inputs, training=False), -1, labels.dtype)
        return tf.math.count_nonzero(predicted == labels)

    return Runner(task, train_step, count_right)


def start_runner(task: Task, precision: str) -> Runner:
    """Build a runner and trace its functions, with ``tf_amp`` enabled or not."""
    if precision == "mixed":
        tf_amp.enable()
    runner = build_runner(task)
    batch = next(task.batches())
    runner.run(batch)
    runner.count_right(*batch)
    tf_amp.disable()
    return runner


def train(task: Task, console: Console) -> dict[str, Runner]:
    """Train a model in both precisions, one step of each in turn."""
    runners = {precision: start_runner(task, precision) for precision in PRECISIONS}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[losses]}"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(task.name, total=task.steps, losses="")
        for number, batch in enumerate(islice(task.batches(), task.steps)):
            # Which precision goes first alternates: the second finds warm caches.
            order = PRECISIONS if number % 2 else PRECISIONS[::-1]
            losses = {name: runners[name].run(batch) for name in order}
            shown = " ".join(f"{name} {losses[name]:.3f}" for name in PRECISIONS)
            progress.update(bar, advance=1, losses=f"loss: {shown}")
    return runners


def quartiles(runner: Runner) -> np.ndarray:
    """Return the lower quartile, median and upper quartile in milliseconds."""
    return np.percentile(runner.seconds[UNTIMED_STEPS:], (25, 50, 75)) * 1e3


def result_table() -> Table:
    """Return an empty table for results."""
    table = Table(title="Training step, and accuracy on data held back", box=SIMPLE)
    table.add_column("model", no_wrap=True)
    for name in ("precision", "median ms", "quartiles ms", "speed", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def add_results(table: Table, task: Task, runners: dict[str, Runner]) -> None:
    """Add one row per precision."""
    slowest = quartiles(runners["float32"])[1]
    for precision, runner in runners.items():
        low, median, high = quartiles(runner)
        table.add_row(
            task.name if precision == "float32" else "",
            precision,
            f"{median:.1f}",
            f"{low:.1f} - {high:.1f}",
            f"{slowest / median:.2f}x",
            f"{100 * runner.accuracy():.1f} %",
        )


def print_plans(console: Console, plans: tuple[Plan, ...]) -> None:
    """Say of each rewritten graph what was done, then list the layers of one."""
    if not plans:
        console.print("16 bits gain nothing here: no graph was rewritten.")
        return
    console.rule(f"What tf-amp did to {len(plans)} graphs")
    for plan in plans:
        console.print(f"- {plan.summary()}", highlight=False, markup=False)
    best = max(plans, key=lambda plan: plan.seconds_before)
    console.rule(f"The {TOP} layers of {best.graph} that take longest")
    console.print(layer_table(best))


def layer_table(plan: Plan) -> Table:
    """Return a table of the slowest layers: their time, and how much is in 16 bits."""
    table = Table(box=SIMPLE)
    table.add_column("layer, forward and backward", overflow="ellipsis", max_width=34)
    for name in ("float32 ms", "mixed ms", f"in {plan.low_dtype}"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in plan.by_layer()[:TOP]:
        share = layer.low_seconds / layer.seconds if layer.seconds else 0.0
        times = (layer.seconds_float32, layer.seconds)
        table.add_row(
            layer.name or "(in no layer)",
            *(f"{seconds * 1e3:.2f}" for seconds in times),
            f"{share:.0%} of the time",
        )
    return table


def parse_arguments() -> argparse.Namespace:
    """Return what to train, and for how many steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ("digits", "text")
    parser.add_argument("--tasks", nargs="+", choices=names, default=names)
    parser.add_argument("--digits-steps", type=int, default=130)
    parser.add_argument("--text-steps", type=int, default=300)
    return parser.parse_args()


def main() -> None:
    """Train the models, print what was decided and what came out."""
    arguments = parse_arguments()
    console = Console()
    table = result_table()
    start = time.perf_counter()
    tasks = {
        "digits": lambda: digits_task(arguments.digits_steps),
        "text": lambda: text_task(arguments.text_steps),
    }
    for task in (tasks[name]() for name in arguments.tasks):
        add_results(table, task, train(task, console))
    print_plans(console, tf_amp.plans())
    console.print(f"Everything took {time.perf_counter() - start:.0f} seconds.")
    console.print(table)


if __name__ == "__main__":
    main()
