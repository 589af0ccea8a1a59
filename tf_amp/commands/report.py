"""`tf-amp report`: a page about a job, a model or a plan."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import tempfile
import webbrowser
from typing import TYPE_CHECKING

from tf_amp.commands import _shared
from tf_amp.commands._shared import DONE, FAILED, NOTHING, Options, Source, say
from tf_amp.config.amp_config import LOG
from tf_amp.errors import ConfigError, ScriptMissingError, guess_path
from tf_amp.report.counts import counted
from tf_amp.report.files import check_writable, write_whole
from tf_amp.report.page import check_extra
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools import running_scripts
from tf_amp.tools.convert.files import SAVED_MODEL_FILES

if TYPE_CHECKING:
    from tf_amp.tools.job_page import JobRecord
    from tf_amp.training.report import LossScaleState

SUMMARY = "write a page with charts of a job, a model or a plan"
TAKES_SCRIPT = True
EXITS = {
    DONE: "the page is written",
    FAILED: "the script failed, and the page shows what it did before",
    NOTHING: "the script had no graph to show, and no page is written",
}


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    options.path(
        "model",
        metavar="SCRIPT|SAVED_MODEL|FOLDER|FILE",
        help="a script, which is run in mixed precision; a SavedModel; a folder that "
        "TF_AMP_LOG or PrecisionReport wrote to; a plan, prediction or verification "
        "as JSON",
    )
    options.path(
        "-o",
        dest="output",
        metavar="FILE",
        help="report.html by default; --out does as well",
        default=pathlib.Path("report.html"),
    )
    # As other commands call it; shown once.
    hidden = argparse.SUPPRESS
    options.path("--out", dest="output", metavar="FILE", help=hidden, default=hidden)
    options.path("--compare", metavar="OTHER", help="a FOLDER or FILE as well")
    options.flag("--open", help="show it in a browser")
    options.setting("device_profile")
    options.batch()
    options.flag("--measure", help="run the SavedModel both ways, too")
    options.limit()


def main(options: argparse.Namespace) -> int:
    """Write the page and return the exit code."""
    kind = _kind_of(options.model)
    _check(options, kind)
    check_extra()
    check_writable("-o", options.output)
    other = options.compare and _read(options.compare)
    if kind == "script":
        return _report_script(options, other)
    record = _of_model(options) if kind == "model" else _read(options.model)
    _write(options, record, other)
    return DONE


def _kind_of(source: pathlib.Path) -> str:
    if not source.exists():
        raise ScriptMissingError(
            f"{source}: no such script, SavedModel, folder or file"
            f"{guess_path(source) or '.'}"
        )
    if source.is_dir():
        is_model = any((source / name).exists() for name in SAVED_MODEL_FILES)
        return "model" if is_model else "record"
    return "record" if source.suffix == ".json" else "script"


def _check(options: argparse.Namespace, kind: str) -> None:
    """Refuse options that belong to another kind of source."""
    received = {
        "--measure": (options.measure, ("model",)),
        "--batch": (options.batch, ("model",)),
        "--seconds": (options.seconds, ("script",)),
        "--device-profile": (options.device_profile, ("script", "model")),
        "arguments after --": (options.script_arguments, ("script",)),
    }
    for name, (value, kinds) in received.items():
        if value and kind not in kinds:
            raise ConfigError(
                f"{name}: {options.model} is taken for a {kind}; allowed with a "
                f"{' or '.join(kinds)}."
            )
    other = options.compare and _kind_of(options.compare)
    if other in ("script", "model"):
        name = "SavedModel" if other == "model" else "script"
        raise ConfigError(
            f"--compare: received {options.compare}, a {name}; allowed is a "
            "folder that TF_AMP_LOG or PrecisionReport wrote to, or a .json file that "
            "tf-amp wrote."
        )


def _read(path: pathlib.Path) -> JobRecord:
    """Read a folder or file, and say which files of it are left out."""
    from tf_amp.tools import job_page as records

    record = records.record_from_path(path)
    for each in record.left_out:
        say(f"left out: {each}")
    return record


def _of_model(options: argparse.Namespace) -> JobRecord:
    check_tensorflow()
    from tf_amp.runtime import enabling
    from tf_amp.tools.explanation import explain_saved_model
    from tf_amp.tools.job_page import JobRecord
    from tf_amp.tools.prediction import Prediction

    if options.device_profile:
        enabling.enable(device_profile=options.device_profile)
    results = explain_saved_model(
        options.model, measure=options.measure, batch=options.batch
    )
    predictions = tuple(each for each in results if isinstance(each, Prediction))
    plans = tuple(
        each.plan if isinstance(each, Prediction) else each for each in results
    )
    return JobRecord(
        options.model.resolve().name,
        plans,
        predictions=predictions,
        source=str(options.model),
        is_model=True,
    )


def _report_script(options: argparse.Namespace, other: JobRecord | None) -> int:
    """Run a script, write the page however it ends, and return the exit code."""
    from tf_amp.rewriting import dumps, host

    source = Source(options)
    # Looked up now, since the script may change to another folder.
    options.output = options.output.resolve()
    with tempfile.TemporaryDirectory(prefix="tf-amp-report-") as own_folder:
        # Child processes of the script write their plans there, or where the user says.
        log = os.environ.get(LOG, "").strip()
        folder = pathlib.Path(log or own_folder).absolute()
        before = set(folder.glob("*.json"))
        collector = dumps.Collector(None if log else folder)
        host.current().logs.append(collector)
        settings = _shared.environment_from(options)
        running_scripts.switch_on({**settings, LOG: str(folder)})
        try:
            source.run()
        finally:
            of_this_process = set(folder.glob(f"{os.getpid()}-*.json"))
            others = sorted(set(folder.glob("*.json")) - before - of_this_process)
            has_plans = bool(collector.plans or others)
            if has_plans:
                from tf_amp.tools import job_page as records

                record = records.record_from_collector(
                    options.model.name, collector, others, _loss_scale()
                )
                record = dataclasses.replace(record, source=str(options.model))
                _write(options, record, other)
            else:
                say(f"no report, since {_shared.why_no_graph()}.")
    return source.exit_code(DONE if has_plans else NOTHING)


def _loss_scale() -> LossScaleState | None:
    """Return the loss scale after the script's steps; None where none was scaled."""
    import tensorflow as tf

    from tf_amp.training.report import loss_scale_state

    try:
        state = loss_scale_state()
    except (RuntimeError, ValueError, tf.errors.OpError):
        # It was in a Session that is gone.
        return None
    return state if state.good_steps or state.skipped_steps else None


def _write(
    options: argparse.Namespace, record: JobRecord, other: JobRecord | None
) -> None:
    from tf_amp.tools.job_page import html_from_record

    html = html_from_record(record, other, options.command_line)
    write_whole(options.output, html.encode())
    graphs = counted(len(record.plans), "graph")
    say(f"{graphs} written to {options.output}.")
    if options.open:
        webbrowser.open(options.output.resolve().as_uri())
