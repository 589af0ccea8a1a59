"""Compare training steps on a GPU: ``python -m benchmarks.gpu --minutes 8``.

The most telling models come first. Figures are written down after each job, so that the
same command goes on where an earlier one was ended.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.catalog import subset_of
from benchmarks.context import Context, context_of
from benchmarks.gpu import report
from benchmarks.gpu.figures import Measured
from benchmarks.gpu.jobs import FULL, LIVING_AT_ONCE, MODELS, SIZES, jobs
from benchmarks.gpu.turns import measured
from benchmarks.machine import gpu_bytes
from benchmarks.processes import worker_environment
from benchmarks.results import keep_table, kept_table, write_results
from tf_amp.report.codec import from_plain

_RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
_NAME = "gpu"


def main() -> None:
    """Measure what the command line names, as far as time allows."""
    parser = _parser()
    options = parser.parse_args()
    memory = gpu_bytes()
    if options.size == FULL:
        if not memory:
            parser.error("no GPU is here; --size small runs on a CPU")
        options.output = options.output or _RESULTS
    command = " ".join(("python -m benchmarks.gpu", *sys.argv[1:]))
    context = context_of(command, rounds=options.rounds)
    results = _kept(options, context)
    for each in _measured(options, results, memory):
        results.append(each)
        model = each.job.model
        of_model = [each for each in results if each.job.model == model]
        print(f"\n{MODELS[model].title}\n\n{report.table(of_model)}\n", flush=True)
        _keep(options, context, results)
    for remark in report.remarks(results):
        print(f"- {remark}")
    if options.output:
        print(f"Written to {options.output}.")


def _measured(
    options: argparse.Namespace, kept: Sequence[Measured], memory: int
) -> Iterator[Measured]:
    """Yield the jobs that are not kept, one by one, until time is up.

    Args:
      options: of the command line.
      kept: what was measured before.
      memory: bytes of the GPU; 0 without one.
    """
    until = time.monotonic() + 60.0 * options.minutes
    part = str(memory // LIVING_AT_ONCE // 2**20)
    settings = ("--size", options.size, "--megabytes", part)
    done = {each.job for each in kept}
    with tempfile.TemporaryDirectory(prefix="tf-amp-gpu-") as cache:
        for job in jobs():
            if job.model not in options.models:
                continue
            if job in done:
                print(f"{job}: kept from before", flush=True)
                continue
            print(f"{job} ...", flush=True)
            begin = time.monotonic()
            found = measured(
                job,
                settings,
                _environment(cache),
                rounds=options.rounds,
                seconds=options.seconds,
                until=until,
            )
            if found is None:
                goes_on = "; the same command measures what is left"
                print(f"Time is up{goes_on if options.output else ''}.")
                return
            print(f"It took {time.monotonic() - begin:.0f} s.")
            yield found


def _kept(options: argparse.Namespace, context: Context) -> list[Measured]:
    """Return what an earlier run has measured of the same, here, at this revision."""
    kept = kept_table(_NAME, _raw(options.output)) if options.output else None
    if kept is None:
        return []
    samples, before = kept
    same = dataclasses.replace(before, date=context.date, command=context.command)
    if same != context or samples["size"] != options.size:
        print("What was kept is of something else, and is measured again.")
        return []
    found = (from_plain(Measured, each) for each in samples["measured"])
    dropped = options.models if options.again else ()
    return [each for each in found if each.job.model not in dropped]


def _keep(
    options: argparse.Namespace, context: Context, results: Sequence[Measured]
) -> None:
    if not options.output:
        return
    samples = {"size": options.size, "measured": list(map(dataclasses.asdict, results))}
    raw = _raw(options.output)
    keep_table(_NAME, report.markdown(results, options.size), samples, context, raw)
    write_results(options.output, raw)


def _raw(output: Path) -> Path:
    return output.parent / "raw"


def _environment(cache: str) -> dict[str, str]:
    environment = worker_environment() | {
        "TF_AMP_CACHE": cache,
        # Else TensorFlow takes all that a process may have of a GPU, and counts no
        # memory of a CPU.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
    }
    del environment["TF_AMP_VERBOSE"]
    return environment


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__
    )
    add = parser.add_argument
    add("--minutes", type=float, default=8.0, help="in which no further model begins")
    add("--size", choices=SIZES, default=FULL, help="of models; small: for a CPU")
    add(
        "--models",
        type=subset_of(tuple(MODELS)),
        default=tuple(MODELS),
        help="names with , between",
    )
    add("--rounds", type=int, default=6, help="in which variants take turns")
    add("--seconds", type=float, default=0.25, help="timed part of a round")
    add("--again", action="store_true", help="measure what was kept, too")
    add("--output", type=Path, help="Markdown file; raw figures go to raw/ beside it")
    return parser


if __name__ == "__main__":
    main()
