"""Compare whole models: ``python -m benchmarks``."""

import argparse
import os
import sys
from pathlib import Path

from benchmarks.announcing import announcing
from benchmarks.benches import job_of, record_of
from benchmarks.catalog import (
    DEFAULT_VARIANTS,
    MOBILENET_BATCHES,
    MODELS,
    MODES,
    VARIANTS,
    subset_of,
    variant,
)
from benchmarks.context import context_of
from benchmarks.machine import this_machine
from benchmarks.report import remarks
from benchmarks.results import (
    BESIDE,
    COMPARED,
    RAW,
    RESULTS,
    Samples,
    benches_of,
    keep_models,
    kept_models,
    write_results,
)
from tf_amp.tools.bench.job import methods_from_text
from tf_amp.tools.bench.rendering import print_record

_MODELS = tuple(each.name for each in MODELS)
_THEN = "`, then `"
_ALL_MODELS = (*_MODELS, *(each.name for each in MOBILENET_BATCHES))


def main() -> int:
    """Measure what the command line names; return 1 if a process failed."""
    options = _parser().parse_args()
    samples = _measured(options)
    low = this_machine().has_low_units
    for remark in remarks(benches_of(samples), has_low_units=low):
        print(remark)
    if path := options.output or _default_output(options):
        grows = options.add or options.beside
        name = BESIDE if options.beside else COMPARED
        which = ",".join(options.models) if grows else None
        words = ("MODEL" if word == which else word for word in sys.argv[1:])
        command = " ".join(("python -m benchmarks", *words))
        raw = RAW if path == RESULTS else path.parent / "raw"
        kept = samples
        if grows and (raw / f"{name}.json").exists():
            others, context = kept_models(raw, name)
            kept = {**others, **samples}
            commands = (*context.command.split(_THEN), command)
            command = _THEN.join(dict.fromkeys(commands))
        keep_models(kept, context_of(command, rounds=options.rounds), raw, name)
        write_results(path, raw)
        print(f"Written to {path}.")
    return int(any(each.failure for found in samples.values() for each in found))


def _measured(options: argparse.Namespace) -> Samples:
    """Return what processes have measured; print a table as soon as one is whole."""
    # TensorFlow is installed with its bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    names = ",".join(variant(name).method for name in options.variants)
    methods = methods_from_text(names)
    keys = [(model, mode) for model in options.models for mode in options.modes]
    found = {}
    with announcing(len(keys) * options.rounds * len(methods)) as announce:
        for model, mode in keys:

            def begin(run: str, where: str = f"{model}, {mode}") -> None:
                announce(f"{where}, {run}")

            job = job_of(model, mode, methods, seconds=options.seconds)
            record = record_of(job, options.rounds, begin)
            print_record(record)
            found[model, mode] = record.samples
    return found


def _default_output(options: argparse.Namespace) -> Path | None:
    """Return RESULTS.md if everything is measured; else only the terminal is told."""
    is_whole = (
        options.models == _MODELS
        and options.modes == MODES
        and set(DEFAULT_VARIANTS) <= set(options.variants)
    )
    return RESULTS if options.add or options.beside or is_whole else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    names = tuple(each.name for each in VARIANTS)
    add("--models", type=subset_of(_ALL_MODELS), default=_MODELS)
    add("--modes", type=subset_of(MODES), default=MODES)
    add("--variants", type=subset_of(names), default=DEFAULT_VARIANTS)
    add("--add", action="store_true", help="to what RESULTS.md has of other models")
    add("--beside", action="store_true", help="variants that the table lacks")
    add("--rounds", type=int, default=5, help="processes per variant and model")
    add("--seconds", type=float, default=2.0, help="timed part of a mode in a process")
    add("--output", type=Path, help="Markdown file; the raw figures go to raw/ there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
