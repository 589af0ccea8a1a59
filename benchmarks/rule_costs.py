"""Predicted cost of rules in speed: ``python -m benchmarks.rule_costs``.

The steps of the eight models are traced, never run, and planned for devices that need
not be present. ``--graphs FOLDER`` keeps what was traced, so that two revisions plan
the same graphs; ``--json FILE`` keeps the figures, and ``--before FILE --after FILE``
compares those of two revisions. The batches are for two cores of a CPU: a GPU idles
between most of their operations, unless they are ``--larger``.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import keras
from rich.progress import track
from tensorflow.core.framework.graph_pb2 import GraphDef

from benchmarks.catalog import MODELS, MODES, entry
from benchmarks.report import markdown_table
from benchmarks.steps import build_model, step_of
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from tf_amp.tools import audit as auditing
from tf_amp.tools import explanation, target_device

PROFILES = ("cpu-avx512-bf16", "v100", "a100")
_DTYPES = {"v100": "float16", "t4": "float16"}


@dataclass(frozen=True)
class Figures:
    """The plan of one step for one device.

    ``seconds`` are those predicted in float32 and mixed; ``slots`` is how many slots
    there are, ``low_slots`` how many of them the plan moves to 16 bits.
    """

    profile: str
    model: str
    mode: str
    seconds: tuple[float, float]
    slots: int
    low_slots: int

    @property
    def key(self) -> tuple[str, str, str]:
        """What the figures are of."""
        return self.profile, self.model, self.mode


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan and print the figures, or compare those of two files."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if bool(options.before) != bool(options.after):
        parser.error("--before and --after are given together")
    if options.before:
        print(comparison(*map(load, (options.before, options.after))))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.graphs or Path(temporary)
        figures = [
            each
            for name in track(options.models, "planning")
            for each in figures_of(name, options, folder)
        ]
    print(table(figures))
    if options.json:
        rows = [dataclasses.asdict(each) for each in figures]
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rule_costs", description=__doc__
    )
    add, names = parser.add_argument, [model.name for model in MODELS]
    add("--models", type=_words, default=names)
    add("--profiles", type=_words, default=list(PROFILES))
    add("--larger", type=int, default=1, help="factor of the batches, if not traced")
    add("--graphs", type=Path, help="folder of the traced graphs; new ones are added")
    add("--json", type=Path, help="file to write the figures to")
    add("--before", type=Path, help="figures of a revision, to be compared")
    add("--after", type=Path, help="those of another one")
    return parser


def _words(text: str) -> list[str]:
    return text.split(",")


def figures_of(
    name: str, options: argparse.Namespace, folder: Path
) -> Iterator[Figures]:
    """Plan both modes of a model for each device."""
    trace_into(folder, name, larger=options.larger)
    for mode in MODES:
        stem = folder / f"{name}_{mode}"
        for profile in options.profiles:
            yield _planned(stem, profile, name, mode)


def trace_into(folder: Path, name: str, *, larger: int) -> None:
    """Write the graphs of a model's steps where they are not there already."""
    stems = {mode: folder / f"{name}_{mode}" for mode in MODES}
    if all(stem.with_suffix(".json").exists() for stem in stems.values()):
        return
    folder.mkdir(parents=True, exist_ok=True)
    keras.backend.clear_session()
    batches = {f"{mode}_batch": larger * entry(name).batch(mode) for mode in MODES}
    described = dataclasses.replace(entry(name), **batches)
    model = build_model(described)
    for mode, stem in stems.items():
        step = step_of(model, described, mode)
        graph_def, kept, _ = explanation.traced_graph(step.function, step.arguments, {})
        stem.with_suffix(".pb").write_bytes(graph_def.SerializeToString())
        stem.with_suffix(".json").write_text(json.dumps(kept))


def _planned(stem: Path, profile: str, name: str, mode: str) -> Figures:
    target = target_device.target_of(profile, _DTYPES.get(profile, "bfloat16"))
    traced = GraphDef.FromString(stem.with_suffix(".pb").read_bytes())
    kept = tuple(json.loads(stem.with_suffix(".json").read_text()))
    graph_def = target.optimized(traced, kept)
    plan = auditing.planned(
        graph_def,
        Item(fetch=kept),
        target,
        shapes=lambda: shapes_from_graph_def(graph_def),
        name=stem.name,
    ).plan
    low_slots = sum(decision.is_low for decision in plan.decisions)
    seconds = plan.seconds_before, plan.seconds_after
    return Figures(profile, name, mode, seconds, len(plan.decisions), low_slots)


def load(path: Path) -> list[Figures]:
    """Return the figures that ``--json`` wrote."""
    rows = json.loads(path.read_text())
    return [Figures(**row | {"seconds": tuple(row["seconds"])}) for row in rows]


def table(figures: Sequence[Figures]) -> str:
    """Return predicted times, their ratio, and how much is in 16 bits."""
    titles = ("profile", "model", "mode", "float32 ms", "mixed ms", "ratio", "16 bits")
    return markdown_table(titles, [_cells(each) for each in figures])


def _cells(figures: Figures) -> tuple[str, ...]:
    times = (f"{1e3 * seconds:.4g}" for seconds in figures.seconds)
    count = f"{figures.low_slots} of {figures.slots}"
    return (*_names(figures), *times, f"{_ratio(*figures.seconds):.3f}", count)


def comparison(before: Sequence[Figures], after: Sequence[Figures]) -> str:
    """Return predicted mixed times of two revisions, and the means of their ratios.

    A ratio is the time before over the time after: above 1 where it became faster.
    Only what is in both is compared.
    """
    later = {each.key: each for each in after}
    pairs = [(each, later[each.key]) for each in before if each.key in later]
    ratios: dict[str, list[float]] = {}
    for old, new in pairs:
        ratios.setdefault(old.profile, []).append(
            _ratio(old.seconds[1], new.seconds[1])
        )
    titles = ("profile", "model", "mode", "before ms", "after ms", "ratio", "16 bits")
    everything = [ratio for each in ratios.values() for ratio in each]
    means = [*ratios.items(), ("all", everything)]
    lines = [f"- {name}: {geometric_mean(each):.4f}" for name, each in means]
    rows = [_compared(old, new) for old, new in pairs]
    return "\n".join([markdown_table(titles, rows), "", "geometric means:", *lines])


def _compared(old: Figures, new: Figures) -> tuple[str, ...]:
    times = old.seconds[1], new.seconds[1]
    shown = (f"{1e3 * seconds:.4g}" for seconds in times)
    counts = f"{old.low_slots} -> {new.low_slots}"
    return (*_names(old), *shown, f"{_ratio(*times):.3f}", counts)


def _names(figures: Figures) -> tuple[str, str, str]:
    return figures.profile, entry(figures.model).title, figures.mode


def _ratio(seconds: float, other: float) -> float:
    """Return a quotient; a graph without candidates has no price, in either type."""
    return seconds / other if other else 1.0


if __name__ == "__main__":
    sys.exit(main())
