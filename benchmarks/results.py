"""Keep the raw figures as JSON, and write RESULTS.md from all that is kept."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.catalog import MOBILENET_BATCHES, MODELS
from benchmarks.context import Context, context_of
from benchmarks.machine import Machine, gpus
from benchmarks.pass_report import GraphSize, PassFigures
from benchmarks.records import Run, run_from_dict
from benchmarks.report import markdown
from benchmarks.summary import rows_from_runs

# Figures of machines with GPUs stand by themselves.
HERE = Path(__file__).resolve().parent / ("gpu" if gpus() else "")
RESULTS = HERE / "RESULTS.md"
RAW = HERE / "raw"
# Sections that keep their table as they print it, in the order of the page.
_TABLES = {
    "prediction": "Predicted against measured",
    "first_step": "The first step",
    "gradients": "Gradients of the first step",
    "memory": "Memory of training steps",
    "published": "Predicted for a V100 against published",
    "all_reduce": "Gradients between replicas",
    "replicas": "Two replicas",
    "scaling": "Many devices, by a model",
    "fusions": "Rewrites beside types",
    "kept_weights": "Weights kept between calls",
    "block_sparse": "Block-sparse products",
    "rows": "Layers of transformers in other forms",
    "training_fusions": "Training steps with fewer, larger kernels",
    "fused_curves": "Learning with fused steps",
    "casts": "Casts per step",
    "xla": "Steps compiled by XLA",
    "convert": "Converting a stored model",
    "serving": "Latency of exported models",
    "loss_scaling": "What loss scaling adds to a step",
    "detector": "A detector in float16",
    "callbacks": "What the callbacks add to a step",
}
_TITLE = "# Measured results\n\nWritten by the programs of this folder; do not edit.\n"


def keep_runs(runs: Sequence[Run], context: Context, folder: Path = RAW) -> None:
    """Write the runs of the models, of each step's times the median."""
    kept = [dataclasses.asdict(shortened(run)) for run in runs]
    _keep("models", {"runs": kept}, context, folder)


def with_others(runs: Sequence[Run], folder: Path = RAW) -> tuple[Run, ...]:
    """Return the runs with those kept of other models or modes, by the catalog."""
    kept = json.loads((folder / "models.json").read_text())["runs"]
    new = {(run.model, each.mode) for run in runs for each in run.measurements}
    others = (_without(run_from_dict(each), new) for each in kept)
    every = (*(run for run in others if run.measurements or run.failure), *runs)
    order = [each.name for each in (*MODELS, *MOBILENET_BATCHES)]
    return tuple(sorted(every, key=lambda run: order.index(run.model)))


def _without(run: Run, new: set[tuple[str, str]]) -> Run:
    """Return a run without what was measured anew."""
    measurements = tuple(m for m in run.measurements if (run.model, m.mode) not in new)
    return dataclasses.replace(run, measurements=measurements)


def command_kept(folder: Path = RAW) -> str:
    """Return the command that the figures of the models are from."""
    kept = json.loads((folder / "models.json").read_text())
    return str(kept["context"]["command"])


def shortened(run: Run) -> Run:
    """Return a run with the median of its steps instead of each, values rounded."""
    measurements = tuple(
        dataclasses.replace(
            each,
            step_seconds=(each.seconds,),
            values=tuple(map(_rounded, each.values)),
        )
        for each in run.measurements
    )
    return dataclasses.replace(run, measurements=measurements)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def keep_pass_figures(
    figures: PassFigures, context: Context, folder: Path = RAW
) -> None:
    """Write the figures of the pass."""
    _keep("pass_time", dataclasses.asdict(figures), context, folder)


def publish(
    name: str,
    markdown: str,
    samples: Any,
    arguments: Sequence[str],
    *,
    rounds: int = 1,
    is_whole: bool = True,
) -> None:
    """Print a section; if it is whole, keep it and write the results anew.

    Args:
      name: of the program, one of ``_TABLES``.
      markdown: the section without its title.
      samples: what was measured, round by round, as JSON can hold it.
      arguments: of the command line.
      rounds: how often everything was measured.
      is_whole: whether everything was measured that the section has.
    """
    print(markdown)
    if is_whole:
        command = " ".join((f"python -m benchmarks.{name}", *arguments))
        keep_table(name, markdown, samples, context_of(command, rounds=rounds))
        write_results()


def keep_table(
    name: str, markdown: str, samples: Any, context: Context, folder: Path = RAW
) -> None:
    """Write the Markdown of a section named in ``_TABLES``, and its samples."""
    assert name in _TABLES, name
    # Six digits are more than any clock gives.
    rounded = json.loads(json.dumps(samples), parse_float=lambda t: _rounded(float(t)))
    _keep(name, {"samples": rounded, "markdown": markdown}, context, folder)


def write_results(path: Path = RESULTS, folder: Path = RAW) -> None:
    """Write the results from the raw figures at hand."""
    path.write_text("\n".join((_TITLE, *_sections(folder))))


def _sections(folder: Path) -> Iterator[str]:
    if (models := folder / "models.json").exists():
        kept = json.loads(models.read_text())
        runs = tuple(run_from_dict(each) for each in kept["runs"])
        context = _context(kept["context"])
        body = markdown(rows_from_runs(runs), context.machine)
        yield f"## Models\n\n{context.markdown()}\n\n{body}\n"
    for name, title in _TABLES.items():
        if (table := folder / f"{name}.json").exists():
            kept = json.loads(table.read_text())
            context = _context(kept["context"])
            yield f"## {title}\n\n{context.markdown()}\n\n{kept['markdown']}\n"
    if (pass_time := folder / "pass_time.json").exists():
        kept = json.loads(pass_time.read_text())
        body = _pass_figures(kept).markdown()
        context = _context(kept["context"])
        yield f"## The pass itself\n\n{context.markdown()}\n\n{body}\n"
    # Of two revisions, so that no program can write it alone.
    if (comparison := folder / "rule_costs.md").exists():
        yield comparison.read_text()


def _keep(name: str, fields: Mapping[str, Any], context: Context, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kept = {**fields, "context": dataclasses.asdict(context)}
    (folder / f"{name}.json").write_text(json.dumps(kept))


def _context(kept: Mapping[str, Any]) -> Context:
    machine = Machine(**{**kept["machine"], "flags": tuple(kept["machine"]["flags"])})
    versions = tuple((name, version) for name, version in kept["versions"])
    return Context(**{**kept, "machine": machine, "versions": versions})


def _pass_figures(kept: Mapping[str, Any]) -> PassFigures:
    without, with_switch = kept["import_seconds"]
    return PassFigures(
        sizes=tuple(_graph_size(each) for each in kept["sizes"]),
        import_seconds=(tuple(without), tuple(with_switch)),
    )


def _graph_size(kept: Mapping[str, Any]) -> GraphSize:
    stages = tuple((name, seconds) for name, seconds in kept["stages"])
    return GraphSize(**{**kept, "stages": stages})
