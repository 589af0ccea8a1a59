"""Keep the raw figures as JSON, and write RESULTS.md from all that is kept."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.benches import Bench, bench_of, joined
from benchmarks.catalog import ENTRIES, MODES
from benchmarks.context import Context, context_of
from benchmarks.machine import Machine, gpus
from benchmarks.report import markdown
from tf_amp.report.codec import from_plain
from tf_amp.report.files import write_whole
from tf_amp.tools.bench.journal import Sample

# Figures of machines with GPUs stand by themselves.
HERE = Path(__file__).resolve().parent / ("gpu" if gpus() else "")
RESULTS = HERE / "RESULTS.md"
RAW = HERE / "raw"
# Variants that are compared with each other, and those that have their own float32.
COMPARED, BESIDE = "models", "models_beside"
# Sections that keep their table as they print it, in the order of the page.
_TABLES = {
    "gpu": "Training steps of a GPU's size",
    "prediction": "Predicted against measured",
    "first_step": "The first step",
    "first_steps": "The first steps, while they are compared",
    "gradients": "Gradients of the first step",
    "memory": "Memory of training steps",
    "live_sets": "Memory, predicted against measured",
    "published": "Predicted for a V100 against published",
    "all_reduce": "Gradients between replicas",
    "replicas": "Two replicas",
    "scaling": "Many devices, by a model",
    "fusions": "Fusions",
    "kept_weights": "Weights kept between calls",
    "block_sparse": "Block-sparse products",
    "rows": "Layers of transformers in other forms",
    "training_fusions": "Training steps with fewer, larger kernels",
    "fused_curves": "Learning with fused steps",
    "casts": "Casts per step",
    "xla": "Steps compiled by XLA",
    "convert": "Converting a stored model",
    "serving": "Latency of exported models",
    "peers": "Beside PyTorch",
    "recurrent": "An LSTM beside its products and gates",
    "loss_scaling": "What loss scaling adds to a step",
    "detector": "A detector in float16",
    "callbacks": "What the callbacks add to a step",
    "pass_time": "The pass itself",
    "kernel_checks": "Checks of kernels",
}
# Those of one step of inference; the next ones compute the same.
_MOST_VALUES = 256
_TITLE = "# Measured results\n\nWritten by the programs of this folder; do not edit.\n"

# By model and mode.
Samples = Mapping[tuple[str, str], Sequence[Sample]]


def keep_models(
    samples: Samples, context: Context, folder: Path = RAW, name: str = COMPARED
) -> None:
    """Write the samples of the models, of each process's times the median."""
    order = [(each.name, mode) for each in ENTRIES for mode in MODES]
    kept = {
        ", ".join(key): [dataclasses.asdict(shortened(each)) for each in samples[key]]
        for key in sorted(samples, key=order.index)
    }
    _keep(name, {"samples": kept}, context, folder)


def kept_models(folder: Path = RAW, name: str = COMPARED) -> tuple[Samples, Context]:
    """Return the samples of the models, and where the last of them are from.

    Args:
      folder: of the raw figures.
      name: ``COMPARED``, or ``BESIDE`` for variants that ran in turns with a float32 of
        their own.
    """
    kept = json.loads((folder / f"{name}.json").read_text())
    samples = {
        (model, mode): tuple(from_plain(Sample, each) for each in fields)
        for key, fields in kept["samples"].items()
        for model, mode in [key.split(", ")]
    }
    return samples, _context(kept["context"])


def benches_of(samples: Samples) -> tuple[Bench, ...]:
    """Return what samples of the models come to."""
    return tuple(bench_of(*key, each) for key, each in samples.items())


def shortened(sample: Sample) -> Sample:
    """Return a sample with the median of its steps instead of each, values rounded."""
    return dataclasses.replace(
        sample,
        step_seconds=(sample.seconds,) if sample.is_measured else (),
        values=tuple(map(_rounded, sample.values[:_MOST_VALUES])),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def publish(
    name: str,
    markdown: str,
    samples: Any,
    *,
    rounds: int = 1,
    is_whole: bool = True,
) -> None:
    """Print a section; if it is whole, keep it and write the results anew.

    Args:
      name: of the program, one of ``_TABLES``.
      markdown: the section without its title.
      samples: what was measured, round by round, as JSON can hold it.
      rounds: how often everything was measured.
      is_whole: whether everything was measured that the section has.
    """
    print(markdown)
    if is_whole:
        command = " ".join((f"python -m benchmarks.{name}", *sys.argv[1:]))
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


def kept_table(name: str, folder: Path = RAW) -> tuple[Any, Context] | None:
    """Return the samples of a section, and where they are from; None without them."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    return kept["samples"], _context(kept["context"])


def write_results(path: Path = RESULTS, folder: Path = RAW) -> None:
    """Write the results from the raw figures at hand."""
    path.write_text("\n".join((_TITLE, *_sections(folder))))


def _sections(folder: Path) -> Iterator[str]:
    if (folder / f"{COMPARED}.json").exists():
        samples, context = kept_models(folder)
        # Each row of the table has rounds of its own.
        context = dataclasses.replace(context, rounds=0)
        benches, facts = benches_of(samples), context.markdown()
        if (folder / f"{BESIDE}.json").exists():
            others, where = kept_models(folder, BESIDE)
            benches = joined(benches, benches_of(others))
            where = dataclasses.replace(where, rounds=0)
            facts += f"\n- Beside them, {where.measured()}"
        body = markdown(benches, context.machine)
        yield f"## Models\n\n{facts}\n\n{body}\n"
    for name, title in _TABLES.items():
        if (table := folder / f"{name}.json").exists():
            kept = json.loads(table.read_text())
            context = _context(kept["context"])
            yield f"## {title}\n\n{context.markdown()}\n\n{kept['markdown']}\n"
    # Of two revisions, so that no program can write it alone.
    if (comparison := folder / "rule_costs.md").exists():
        yield comparison.read_text()


def _keep(name: str, fields: Mapping[str, Any], context: Context, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kept = {**fields, "context": dataclasses.asdict(context)}
    # A run that is ended meanwhile goes on from what was there before.
    write_whole(folder / f"{name}.json", json.dumps(kept).encode())


def _context(kept: Mapping[str, Any]) -> Context:
    machine = Machine(**{**kept["machine"], "flags": tuple(kept["machine"]["flags"])})
    versions = tuple((name, version) for name, version in kept["versions"])
    return Context(**{**kept, "machine": machine, "versions": versions})
