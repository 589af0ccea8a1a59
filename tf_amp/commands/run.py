"""`tf-amp run`: a script, or a module, in mixed precision."""

from __future__ import annotations

import argparse

from tf_amp.config import amp_config
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.config.presets import PRESETS
from tf_amp.tools import running_scripts

SUMMARY = "run a script in mixed precision"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
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
    running_scripts.add_script_to(parser)


def main(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    environment = {
        amp_config.DTYPE: options.dtype,
        amp_config.OPT_LEVEL: options.opt_level,
        amp_config.DEVICE_PROFILE: options.device_profile,
        amp_config.LOG: options.log,
        amp_config.STRICT: "1" if options.strict else None,
        amp_config.RANGES: options.ranges,
    }
    given = {name: value for name, value in environment.items() if value is not None}
    running_scripts.switch_on(given)
    if options.verbose:
        running_scripts.show_summaries()
    running_scripts.run_script(
        options.script, options.arguments, as_module=options.module
    )
    return 0
