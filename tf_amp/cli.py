"""The command line: `tf-amp` and `python -m tf_amp`.

    tf-amp run train.py ARGS...
    tf-amp doctor | explain SAVED_MODEL | calibrate
    tf-amp audit SAVED_MODEL | SCRIPT --device v100 -- ARGS...
    tf-amp verify | ranges SAVED_MODEL | SCRIPT -- ARGS...
    tf-amp convert IN OUT
    tf-amp tune train.py ARGS...
    tf-amp costs show | export | import | merge | clear

Exit codes: the script's own; 2 for a command line or a setting that makes no sense.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

import tf_amp
from tf_amp import (
    audit_command,
    config,
    convert_command,
    costs_command,
    model_options,
    ranges_command,
    running,
    tune_command,
    verify_command,
)
from tf_amp.config import LOW_DTYPES
from tf_amp.errors import AmpError
from tf_amp.presets import PRESETS

_USAGE_ERROR = 2
_COMMANDS = (
    "run",
    "doctor",
    "explain",
    "audit",
    "verify",
    "ranges",
    "calibrate",
    "convert",
    "tune",
    "costs",
)
_CALIBRATION_SECONDS = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
      argv: the arguments, `sys.argv[1:]` by default. A first argument that is no
        command is a script to run.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] not in _COMMANDS and arguments[0][0] != "-":
        arguments.insert(0, "run")
    arguments, own = model_options.split(arguments)
    options = _parser().parse_args(arguments)
    options.script_arguments = own
    try:
        return int(options.command(options))
    except AmpError as error:
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
    from tf_amp import doctor

    if options.devices:
        from tf_amp.topology import report

        return report.main()
    return doctor.main()


def _explain(options: argparse.Namespace) -> int:
    from tf_amp import explanation, printing

    plans = explanation.explain_saved_model(
        options.saved_model, options.signature, measure=options.measure
    )
    for plan in plans:
        if options.json:
            print(plan.to_json())
        else:
            printing.show(plan.top(options.top))
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from tf_amp import runtime

    runtime.check_tensorflow()
    from tf_amp import calibrating

    return calibrating.main(options.seconds, options.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tf-amp",
        description="Automatic mixed precision for TensorFlow programs.",
        epilog="`tf-amp train.py ARGS...` is short for `tf-amp run train.py ARGS...`.",
    )
    parser.add_argument("--version", action="version", version=tf_amp.__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_run(commands.add_parser("run", help="run a script in mixed precision"))
    doctor = commands.add_parser("doctor", help="what works here, what mends it")
    doctor.add_argument(
        "--devices", action="store_true", help="devices, links, and how to use them"
    )
    doctor.set_defaults(command=_doctor)
    _add_explain(commands.add_parser("explain", help="print the plan of a SavedModel"))
    audit = commands.add_parser("audit", help="would it pay on another device")
    audit_command.add_options(audit)
    verify = commands.add_parser("verify", help="do the numbers hold")
    verify_command.add_options(verify)
    ranges = commands.add_parser("ranges", help="what ranges do tensors keep to")
    ranges_command.add_options(ranges)
    _add_calibrate(commands.add_parser("calibrate", help="measure this device"))
    convert = commands.add_parser("convert", help="a stored model to mixed precision")
    convert_command.add_options(convert)
    tune = commands.add_parser("tune", help="run a script and measure its graphs' ops")
    tune_command.add_options(tune)
    costs_command.add_to(commands.add_parser("costs", help="what was measured here"))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    levels = "; ".join(f"{preset.name}: {preset.summary}" for preset in PRESETS)
    parser.add_argument("--dtype", choices=LOW_DTYPES)
    parser.add_argument("--opt-level", type=str.upper, help=levels)
    parser.add_argument("--device-profile", metavar="NAME", help="plan for this device")
    parser.add_argument("--log", metavar="DIR", help="write graphs and plans there")
    parser.add_argument("--ranges", metavar="FILE", help="what `tf-amp ranges` wrote")
    parser.add_argument("--strict", action="store_true", help="raise on failure")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print one line per graph"
    )
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the script is a module's name"
    )
    parser.add_argument("script", help="as python would get it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    parser.set_defaults(command=_run)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("saved_model", type=pathlib.Path)
    parser.add_argument("--signature", help="only this one; all by default")
    parser.add_argument("--top", type=int, default=20, help="rows to print")
    parser.add_argument("--json", action="store_true", help="print whole plans as JSON")
    parser.add_argument(
        "--measure", action="store_true", help="run it, and print what it takes too"
    )
    parser.set_defaults(command=_explain)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=_CALIBRATION_SECONDS)
    parser.add_argument("--out", type=pathlib.Path, help="file; the cache by default")
    parser.set_defaults(command=_calibrate)
