"""Predicted against measured memory of steps: python -m benchmarks.live_sets.

What a step holds at once is the bytes that its tensors ask for, as TensorFlow's
profiler records them, added to variables and inputs. TensorFlow's allocator rounds
sizes up and may give a tensor a larger block than it asks for.
"""

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import tensorflow as tf

from benchmarks.announcing import announcing
from benchmarks.capture_graphs import capture
from benchmarks.catalog import MODELS, entry, subset_of, variant
from benchmarks.memory import DEVICE, environment
from benchmarks.processes import worker_lines
from benchmarks.report import markdown_table
from benchmarks.results import publish
from benchmarks.steps import build_model, step_of
from benchmarks.variants import switch_on
from grappler_pass.planning.live_set import THREADS, largest_live_set

_NAMES = tuple(each.name for each in MODELS)
_FLOAT32, _OURS = "float32", "untuned"
_STEPS = 3
_MEGA = 1e6
_NEAR = 0.1
_MOST = 1.05
_TITLES = (
    "model",
    "method",
    "predicted MB",
    "measured MB",
    "predicted / measured",
    "allocator's MB",
    "of float32, predicted",
    "of float32, measured",
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a model's training step takes.

    Attributes:
      predicted: most bytes that it holds at once.
      measured: the same, by the profiler, of each of some steps.
      allocated: most bytes of the allocator's blocks in use, of some other steps.
    """

    predicted: int
    measured: tuple[int, ...]
    allocated: tuple[int, ...]


def main() -> None:
    """Measure, print, and write the section of RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_sets")
    parser.add_argument("--models", type=subset_of(_NAMES), default=_NAMES)
    parser.add_argument(
        "--worker", nargs=2, metavar=("MODEL", "VARIANT"), help="one process"
    )
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(dataclasses.asdict(_memory(*options.worker))))
        return
    found: dict[tuple[str, str], Memory] = {}
    with announcing() as announce:
        for model in options.models:
            for name in (_FLOAT32, _OURS):
                announce(f"{model}, {name}")
                found[model, name] = measured(model, name)
    publish(
        "live_sets",
        markdown(found),
        {", ".join(key): dataclasses.asdict(each) for key, each in found.items()},
        is_whole=options.models == _NAMES,
    )


def measured(model: str, name: str) -> Memory:
    """Return what a model's training step takes in a process of its own."""
    words = ("live_sets", "--worker", model, name)
    *_, line = worker_lines(*words, environment=environment(None))
    fields = json.loads(line)
    return Memory(**{**fields, "measured": tuple(fields["measured"])})


def _memory(name: str, chosen: str) -> Memory:
    """Train some steps in this process, and look at what they take."""
    method = variant(chosen).method
    switch_on(method)
    model = build_model(entry(name))
    step = step_of(model, entry(name), "train")
    if chosen == _OURS:
        import tf_amp

        step()
        plan = tf_amp.explain(step.function, *step.arguments)
        predicted = plan.peak_bytes_after
    else:
        graph = capture(step)
        view = graph.view_on_cpu()
        predicted = largest_live_set(view, graph.shapes, THREADS).size
    step()
    allocated = []
    for _ in range(_STEPS):
        tf.config.experimental.reset_memory_stats(DEVICE)
        step()
        allocated.append(tf.config.experimental.get_memory_info(DEVICE)["peak"])
    variables = (*model.variables, *model.optimizer.variables)
    kept = [*(each.value for each in variables), *tf.nest.flatten(step.arguments)]
    held = sum(each.shape.num_elements() * each.dtype.size for each in kept)
    added = [_added_bytes(step) for _ in range(_STEPS)]
    return Memory(predicted, tuple(held + each for each in added), tuple(allocated))


def _added_bytes(step: Callable[[], object]) -> int:
    """Return the most bytes that a step has asked for and not given back."""
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)
        with tf.profiler.experimental.Profile(folder, options):
            step()
        (trace,) = Path(folder).rglob("*.xplane.pb")
        asked = sorted(_allocations(trace.read_bytes()), key=lambda each: each[0])
    alive = most = 0
    for _, size in asked:
        alive += size
        most = max(most, alive)
    return most


def _allocations(trace: bytes) -> Iterator[tuple[int, int]]:
    """Yield when bytes were asked for or, as a negative number, given back."""
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

    for plane in XSpace.FromString(trace).planes:
        names = {number: each.name for number, each in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                what = plane.event_metadata[event.metadata_id].name
                if what not in ("MemoryAllocation", "MemoryDeallocation"):
                    continue
                stats: dict[str, Any] = {
                    names[each.metadata_id]: each.int64_value or each.uint64_value
                    for each in event.stats
                }
                when = line.timestamp_ns * 1000 + event.offset_ps
                sign = 1 if what == "MemoryAllocation" else -1
                yield when, sign * stats["requested_bytes"]


def markdown(found: dict[tuple[str, str], Memory]) -> str:
    """Return the table, what its columns mean, and what follows from it."""
    rows = []
    for (model, name), each in found.items():
        float32 = found[model, _FLOAT32]
        sizes = sorted(size / _MEGA for size in each.measured)
        rows.append(
            (
                entry(model).title,
                "tf-amp" if name == _OURS else name,
                f"{each.predicted / _MEGA:.3g}",
                f"{sizes[0]:.3g} to {sizes[-1]:.3g}",
                f"{_ratio(each):.2f}",
                f"{median(each.allocated) / _MEGA:.3g}",
                f"{each.predicted / float32.predicted:.2f}",
                f"{median(each.measured) / median(float32.measured):.2f}",
            )
        )
    explanation = (
        "*predicted*: the most bytes that a training step holds at once, by a schedule "
        "of its graph, variables and inputs included. *measured*: the bytes that its "
        f"tensors ask for, by TensorFlow's profiler, least and most of {_STEPS} steps. "
        "*allocator's*: the blocks of TensorFlow's best-fit allocator, which may be "
        "larger. Of tf-amp the plan is the one without tuning."
    )
    return "\n\n".join(
        (markdown_table(_TITLES, rows), explanation, "\n".join(_conclusions(found)))
    )


def _ratio(memory: Memory) -> float:
    return memory.predicted / median(memory.measured)


def _conclusions(found: dict[tuple[str, str], Memory]) -> Iterator[str]:
    near = [key for key, each in found.items() if abs(_ratio(each) - 1.0) <= _NEAR]
    others = sorted({entry(m).title for m, _ in found.keys() - set(near)})
    yield (
        f"- {len(near)} of {len(found)} predictions are within {_NEAR:.0%} of what is "
        f"measured{_except(others)}."
    )
    titles = [
        entry(model).title
        for (model, name), each in found.items()
        if each.predicted > _MOST * found[model, _FLOAT32].predicted
    ]
    yield (
        f"- By prediction, a plan holds at most {_MOST} times what float32 holds"
        f"{_except(titles)}."
    )


def _except(titles: Sequence[str]) -> str:
    return f", but not of {', '.join(titles)}" if titles else ""


if __name__ == "__main__":
    main()
