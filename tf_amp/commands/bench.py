"""`tf-amp bench`: the user's own model, float32 and mixed precision side by side."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_amp.commands import _shared
from tf_amp.commands._shared import DONE, FAILED, INTERRUPTED, NOTHING, Options, say
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.report import page
from tf_amp.report.counts import about, counted
from tf_amp.report.files import check_writable, write_whole
from tf_amp.tools.bench import job as jobs

if TYPE_CHECKING:
    from tf_amp.tools.bench.record import BenchRecord

SUMMARY = "time your own model in float32, with tf-amp, and by other methods"
TAKES_SCRIPT = True
EXITS = {
    DONE: "all was measured",
    FAILED: "a process failed",
    NOTHING: "no step was seen",
}


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    options.add(
        "target",
        metavar="SCRIPT|MODULE:FUNCTION|SAVED_MODEL",
        help="a program, a function that makes a step, or a stored model",
    )
    options.add(
        "--methods",
        default="float32,tf-amp",
        metavar="LIST",
        help="what is compared with float32: tf-amp (if none are given), keras, "
        "tensorflow, or all; tf-amp with a level, or settings without TF_AMP_: "
        "tf-amp:O2+TUNE=off",
    )
    add = options.add
    add("--batches", metavar="LIST", help="batch sizes, such as 1,8,32")
    add("--mode", choices=jobs.MODES, help="which steps; train, of a SavedModel infer")
    add("--rounds", type=int, default=3, metavar="N", help="processes of each (3)")
    add("--signature", metavar="NAME", help="of a SavedModel")
    ends = "end a process after so long, and use the steps it has done (600)"
    options.seconds("--seconds", ends, 600.0)
    called = "call a step that is not a script's for so long (3)"
    options.seconds("--step-seconds", called, 3.0)
    costs = options.parser.add_mutually_exclusive_group()
    costs.add_argument(
        "--warm", action="store_true", help="use your own cache of verdicts"
    )
    costs.add_argument(
        "--learn",
        action="store_true",
        help="before each process of tf-amp run one that measures costs from nothing, "
        "and does not count",
    )
    add(
        "--largest-batch",
        type=int,
        metavar="MIB",
        help="find the largest batch whose tensors take no more, instead",
    )
    options.path("--json", metavar="FILE", help="keep and continue it there")
    options.path("--html", metavar="FILE", help="write a page with a chart")
    options.path("--png", metavar="FILE", help="write a chart")
    options.parser.epilog = (
        "What follows `--` are the script's own arguments, {batch} in them the batch "
        "size."
    )


def main(options: argparse.Namespace) -> int:
    """Measure what the command line names, and print the table."""
    from tf_amp.tools.bench import record as records
    from tf_amp.tools.bench import rendering

    job = _job_of(options)
    _check_outputs(options)
    if options.largest_batch is not None:
        return _find_largest(job, options.largest_batch)
    fresh = records.BenchRecord(job, records.context_of(job.target))
    record = fresh if options.json is None else records.continued(fresh, options.json)
    record, stopped_by = _measured(record, options)
    failures = [each for each in record.samples if each.failure]
    is_measured = any(each.is_measured for each in record.samples)
    if is_measured:
        rendering.print_record(record)
    if isinstance(stopped_by, ConfigError):
        raise stopped_by
    if stopped_by is not None:
        say(f"interrupted; {_kept(record, options)}.")
        return INTERRUPTED
    if not is_measured:
        print(failures[0].traceback, end="", file=sys.stderr)
        say(f"nothing was measured: {failures[0]}.")
        return NOTHING if all(each.is_idle for each in failures) else FAILED
    if options.html is not None:
        page = rendering.page_of(record, options.command_line)
        write_whole(options.html, page.encode())
    if options.png is not None:
        write_whole(options.png, rendering.png_of(record))
    for path in filter(None, (options.html, options.png)):
        say(f"written to {path}.")
    return FAILED if failures else DONE


def _find_largest(job: jobs.BenchJob, mebibytes: int) -> int:
    """Print the largest batch of each method."""
    from tf_amp.tools.bench import largest

    try:
        with _interrupts() as stop, _shared.progress_shown():
            found = list(largest.largest_batches(job, mebibytes, stop))
    except KeyboardInterrupt:
        return INTERRUPTED
    largest.print_largest(job, mebibytes, found)
    return DONE


def _job_of(options: argparse.Namespace) -> jobs.BenchJob:
    if options.rounds < 1:
        raise ConfigError(f"--rounds must be 1 or more, got {options.rounds}.")
    batches = options.batches
    if options.largest_batch is not None:
        if options.largest_batch < 1:
            raise ConfigError(
                f"--largest-batch must be 1 or more, got {options.largest_batch}."
            )
        if any((options.json, options.html, options.png)):
            raise ConfigError("--largest-batch writes no --json, --html or --png.")
        batches = batches or "8"
        if "," in batches:
            raise ConfigError("--largest-batch begins with one of --batches; give one.")
    compared = jobs.methods_from_text(options.methods)
    target = jobs.program_of(
        options.target, options.script_arguments, options.signature
    )
    is_stored = target.kind == jobs.SAVED_MODEL
    if is_stored and options.mode == "train":
        raise ConfigError("A SavedModel has no training step; give --mode infer.")
    AmpConfig.from_env()
    return jobs.BenchJob(
        target,
        options.mode or ("infer" if is_stored else "train"),
        compared,
        jobs.batches_of(target, batches),
        options.seconds,
        options.step_seconds,
        options.warm,
        options.learn,
        jobs.settings_of(os.environ),
    )


def _check_outputs(options: argparse.Namespace) -> None:
    from tf_amp.tools.bench import rendering

    outputs = {name: getattr(options, name) for name in ("json", "html", "png")}
    paths = {name: path for name, path in outputs.items() if path is not None}
    for name, path in paths.items():
        check_writable(f"--{name}", path)
    if len({path.resolve() for path in paths.values()}) < len(paths):
        raise ConfigError("--json, --html and --png must be files of their own.")
    if options.html is not None:
        page.check_extra()
    if options.png is not None:
        rendering.check_extra()


def _measured(
    record: BenchRecord, options: argparse.Namespace
) -> tuple[BenchRecord, KeyboardInterrupt | ConfigError | None]:
    """Run what is left; return what there is, and why it is not all of it."""
    from tf_amp.tools.bench.record import measured, processes_of, runs_left

    job = record.job
    counts = [processes_of(job, run) for run in runs_left(record, options.rounds)]
    if counts:
        say(_plan_text(record, options.rounds, sum(counts)))
    begin = time.monotonic()
    try:
        with _interrupts() as stop, _shared.progress_shown():
            for number, grown in enumerate(measured(record, options.rounds, stop)):
                record = grown
                if options.json is not None:
                    record.write(options.json)
                if number == 0 and record.samples[-1].is_measured and counts[1:]:
                    seconds = (time.monotonic() - begin) / counts[0]
                    left = sum(counts[1:])
                    say(
                        f"a run takes {about(seconds)}, and the other {left} take "
                        f"{about(seconds * left)} ..."
                    )
    except (KeyboardInterrupt, ConfigError) as error:
        return record, error
    return record, None


def _plan_text(record: BenchRecord, rounds: int, count: int) -> str:
    """Say how many processes are to be started, and for what."""
    job = record.job
    more = " more" if record.samples else ""
    sizes = f", at {len(job.batches)} batch sizes" if len(job.batches) > 1 else ""
    return (
        f"{job.target.title} is to be run {counted(count, 'time')}{more}: "
        f"{counted(rounds, 'round')} of {', '.join(job.methods)}{sizes}. --rounds and "
        "--methods change that."
    )


def _kept(record: BenchRecord, options: argparse.Namespace) -> str:
    """Say what an interruption has left of a measurement."""
    if options.json is None:
        return "nothing is kept without --json"
    measured = sum(each.is_measured for each in record.samples)
    if not measured:
        return "no run had ended, so that there is nothing to keep"
    total = sum(1 for _ in record.job.runs(options.rounds))
    done = f"{measured} of {counted(total, 'run')}"
    return f"{options.json} keeps {done}, and the same command does the rest"


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Yield what Ctrl-C sets, and a request to terminate.

    An exception might come while a process is being started, which would then be left.
    """
    stop = threading.Event()
    before = {
        each: signal.signal(each, lambda *_: stop.set())
        for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
