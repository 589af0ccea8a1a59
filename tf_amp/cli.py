"""The command line: `tf-amp` and `python -m tf_amp`.

    tf-amp run train.py ARGS...
    tf-amp doctor | explain SAVED_MODEL | calibrate
    tf-amp audit SAVED_MODEL | SCRIPT --device v100 -- ARGS...
    tf-amp verify | ranges SAVED_MODEL | SCRIPT -- ARGS...
    tf-amp convert IN OUT
    tf-amp tune train.py ARGS...
    tf-amp costs show | export | import | merge | clear

Exit codes: the script's own, 1 for what it raises; 2 for a command line or a setting
that makes no sense.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

import tf_amp
from tf_amp.commands import audit as audit_command
from tf_amp.commands import convert as convert_command
from tf_amp.commands import costs as costs_command
from tf_amp.commands import model_options, running
from tf_amp.commands import ranges as ranges_command
from tf_amp.commands import tune as tune_command
from tf_amp.commands import verify as verify_command
from tf_amp.commands.counts import count_from_text
from tf_amp.commands.durations import seconds_from_text
from tf_amp.configuration import config
from tf_amp.configuration.config import LOW_DTYPES
from tf_amp.configuration.presets import PRESETS
from tf_amp.errors import AmpError
from tf_amp.tensorflow_version import check_tensorflow

_USAGE_ERROR = 2
_CALIBRATION_SECONDS = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
      argv: the arguments, `sys.argv[1:]` by default. A first argument that is no
        command is a script to run.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] not in _COMMANDS and arguments[0][:1] != "-":
        arguments.insert(0, "run")
    arguments, own = model_options.split(arguments)
    options = _parser().parse_args(arguments)
    options.script_arguments = own
    try:
        return int(options.command(options))
    except AmpError as error:
        if error.is_scripts_own:
            raise
        print(f"tf-amp: {error}", file=sys.stderr)
        return _USAGE_ERROR


def _run(options: argparse.Namespace) -> int:
    environment = {
        config.DTYPE: options.dtype,
        config.OPT_LEVEL: options.opt_level,
        config.DEVICE_PROFILE: options.device_profile,
        config.LOG: options.log,
        config.STRICT: "1" if options.strict else None,
        config.RANGES: options.ranges,
    }
    given = {name: value for name, value in environment.items() if value is not None}
    running.switch_on(given)
    if options.verbose:
        running.show_summaries()
    running.run_script(options.script, options.arguments, as_module=options.module)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from tf_amp.commands import doctor

    if options.devices:
        from tf_amp.topology import report

        return report.main()
    return doctor.main()


def _explain(options: argparse.Namespace) -> int:
    from tf_amp.commands import printing
    from tf_amp.explaining.signatures import explain_saved_model

    plans = explain_saved_model(
        options.saved_model, options.signature, measure=options.measure
    )
    if options.json:
        print(json.dumps([json.loads(plan.to_json()) for plan in plans], indent=1))
    else:
        printing.show(*(plan.top(options.top) for plan in plans))
    return 0


def _calibrate(options: argparse.Namespace) -> int:

    check_tensorflow()
    from tf_amp.commands import calibrate as calibrating

    return calibrating.main(options.seconds, options.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tf-amp",
        description="Automatic mixed precision for TensorFlow programs.",
        epilog="`tf-amp train.py ARGS...` is short for `tf-amp run train.py ARGS...`.",
    )
    parser.add_argument("-V", "--version", action="version", version=tf_amp.__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (add_options, summary) in _COMMANDS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        add_options(commands.add_parser(name, help=summary, description=description))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    levels = "; ".join(f"{preset.name} {preset.summary}" for preset in PRESETS)
    parser.add_argument("--dtype", choices=LOW_DTYPES, help="this device's by default")
    parser.add_argument("--opt-level", type=str.upper, metavar="LEVEL", help=levels)
    parser.add_argument("--device-profile", metavar="NAME", help="plan for this device")
    parser.add_argument("--log", metavar="DIR", help="write graphs and plans there")
    parser.add_argument("--ranges", metavar="FILE", help="what `tf-amp ranges` wrote")
    parser.add_argument("--strict", action="store_true", help="raise on failure")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print one line per graph"
    )
    running.add_script_to(parser)
    parser.set_defaults(command=_run)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--devices", action="store_true", help="devices, links, and how to use them"
    )
    parser.set_defaults(command=_doctor)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "saved_model", type=pathlib.Path, metavar="SAVED_MODEL", help="its folder"
    )
    parser.add_argument(
        "--signature", metavar="NAME", help="only this one; all by default"
    )
    parser.add_argument(
        "--top",
        type=count_from_text,
        default=20,
        metavar="N",
        help="rows to print (20); 0 for all",
    )
    parser.add_argument("--json", action="store_true", help="print whole plans as JSON")
    parser.add_argument(
        "--measure", action="store_true", help="run it, and print what it takes too"
    )
    parser.set_defaults(command=_explain)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=seconds_from_text,
        default=_CALIBRATION_SECONDS,
        metavar="N",
        help=f"take no longer than this ({_CALIBRATION_SECONDS:g})",
    )
    parser.add_argument(
        "--out", type=pathlib.Path, metavar="FILE", help="the cache by default"
    )
    parser.set_defaults(command=_calibrate)


# Each with what adds its options, and what it does.
_COMMANDS = {
    "run": (_add_run, "run a script in mixed precision"),
    "doctor": (_add_doctor, "say whether it works here, and what mends it"),
    "explain": (_add_explain, "print the plan of a SavedModel, with the reasons"),
    "audit": (
        audit_command.add_options,
        "predict what mixed precision gains on a device that need not be present",
    ),
    "verify": (
        verify_command.add_options,
        "compare the numbers of mixed precision with those of float32",
    ),
    "ranges": (
        ranges_command.add_options,
        "record the ranges that tensors keep to, and what leaves the 16-bit range",
    ),
    "calibrate": (_add_calibrate, "measure this CPU and keep the result"),
    "convert": (
        convert_command.add_options,
        "convert a stored model to mixed precision, or back",
    ),
    "tune": (tune_command.add_options, "run a script, and measure all that it needs"),
    "costs": (costs_command.add_to, "show, carry along or clear what was measured"),
}
