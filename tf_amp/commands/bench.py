"""`tf-amp bench`: the user's own model, float32 and mixed precision side by side."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_amp.commands import _shared
from tf_amp.commands._shared import DONE, FAILED, INTERRUPTED, NOTHING, Options, say
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.report import page
from tf_amp.report.files import check_writable, write_whole
from tf_amp.tools.bench import job as jobs

if TYPE_CHECKING:
    from tf_amp.tools.bench.record import BenchRecord

SUMMARY = "time your own model: float32, Keras' policy, TensorFlow's pass, tf-amp"
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
        help="a program, run as it is; what makes a step; or a stored model",
    )
    options.add(
        "--methods",
        default="float32,keras,tensorflow,tf-amp",
        metavar="LIST",
        help="of float32, keras, tensorflow, tf-amp (these four if none are given); "
        "tf-amp with a level, or settings without TF_AMP_: tf-amp:O2+TUNE=off",
    )
    add = options.add
    add("--batches", metavar="LIST", help="batch sizes, such as 1,8,32")
    add("--mode", choices=jobs.MODES, help="which steps; train, of a SavedModel infer")
    add("--rounds", type=int, default=5, metavar="N", help="processes of each (5)")
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
        goes_on = "the same command goes on from here"
        kept = goes_on if options.json else "nothing is kept without --json"
        say(f"interrupted; {kept}.")
        return INTERRUPTED
    if not is_measured:
        print(failures[0].traceback, end="", file=sys.stderr)
        say(f"nothing was measured: {failures[0]}.")
        return NOTHING if all(each.is_idle for each in failures) else FAILED
    if options.html is not None:
        write_whole(options.html, rendering.page_of(record).encode())
    if options.png is not None:
        write_whole(options.png, rendering.png_of(record))
    return FAILED if failures else DONE


def _job_of(options: argparse.Namespace) -> jobs.BenchJob:
    if options.rounds < 1:
        raise ConfigError(f"--rounds must be 1 or more, got {options.rounds}.")
    compared = jobs.methods_from_text(options.methods)
    target = jobs.program_of(
        options.target, options.script_arguments, options.signature
    )
    is_stored = target.kind == jobs.SAVED_MODEL
    if is_stored and options.mode == "train":
        raise ConfigError("A SavedModel has no training step; give --mode infer.")
    settings = jobs.settings_of(os.environ)
    AmpConfig.from_env(dict(settings))
    return jobs.BenchJob(
        target,
        options.mode or ("infer" if is_stored else "train"),
        compared,
        jobs.batches_of(target, options.batches),
        options.seconds,
        options.step_seconds,
        options.warm,
        options.learn,
        settings,
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
    from tf_amp.tools.bench.record import measured

    try:
        with _interrupts() as stop, _shared.progress_shown():
            for grown in measured(record, options.rounds, stop):
                record = grown
                if options.json is not None:
                    record.write(options.json)
    except (KeyboardInterrupt, ConfigError) as error:
        return record, error
    return record, None


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
