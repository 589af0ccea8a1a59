"""`tf-amp verify`: a SavedModel, or the graphs of a script on what they first get."""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING

from tf_amp.commands import _shared
from tf_amp.commands._shared import DONE, FAILED, NOTHING, Options, Source, say
from tf_amp.config.amp_config import checked_settings
from tf_amp.config.setting_values import checked_patterns, checked_tolerance
from tf_amp.errors import ConfigError, NotMeasurableError
from tf_amp.report.counts import counted
from tf_amp.report.files import check_writable
from tf_amp.run import progress
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from tf_amp.tools.verify.verification import Verification

SUMMARY = "compare the numbers of mixed precision with those of float32"
TAKES_SCRIPT = True
EXITS = {
    DONE: "the numbers hold, at least as far as by hand",
    FAILED: "they do not, or the script failed",
    NOTHING: "nothing was verified, as where no graph is changed",
}


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    options.model(data="inputs of a SavedModel")
    options.batch()
    options.rewriting("O1 to O3")
    options.checked(
        "--tolerance",
        checked_tolerance,
        metavar="X",
        help="largest relative error; 8 roundings by default",
    )
    options.flag("--bisect", help="find what must be float32 for it to hold")
    options.path(
        "--write",
        metavar="FILE",
        help="where --bisect writes what to exclude (tf-amp-exclude.txt)",
        default=pathlib.Path("tf-amp-exclude.txt"),
    )
    options.flag("--json", help="print JSON")


def main(options: argparse.Namespace) -> int:
    """Verify what the command line names, print what is found, return the exit code."""
    source = Source(options)
    if options.data is not None and options.batch is not None:
        raise ConfigError("--batch: --data has batches of their own sizes.")
    if options.bisect:
        check_writable("--write", options.write)
    check_tensorflow()
    verifications = (
        _of_model(options) if source.is_model else _of_script(options, source)
    )
    if options.json:
        _shared.show_json(verifications, source.stream)
    else:
        from tf_amp.report.display import show

        show(*verifications)
        if len(verifications) > 1:
            failing = [each.graph or "graph" for each in verifications if not each.ok]
            held = f"{len(verifications) - len(failing)} of {len(verifications)} graphs"
            but = f"; not those of {', '.join(failing)}" if failing else ""
            print(f"In all, the numbers of {held} hold{but}.")
    in_force = dict.fromkeys(p for each in verifications for p in each.excluded)
    for pattern in in_force:
        if all(pattern in each.unmatched for each in verifications):
            say(f"exclude: {pattern!r} matches no operation of what was verified.")
    culprits = {c.pattern: c for each in verifications for c in each.culprits or ()}
    if culprits:
        from tf_amp.tools.verify.verification import write_exclude_list

        file, heading = options.write, "What tf-amp verify --bisect found."
        write_exclude_list(file, culprits.values(), heading, in_force)
        say(
            f"{counted(len(culprits), 'operation')} written to {file}; "
            f"TF_AMP_EXCLUDE=@{file} and --exclude @{file} keep "
            f"{'it' if len(culprits) == 1 else 'them'} in float32."
        )
    if not any(each.is_changed for each in verifications):
        why = ": no graph is changed here" if verifications else ""
        say(f"nothing was verified{why}.")
        return source.exit_code(NOTHING)
    return source.exit_code(DONE if all(each.ok for each in verifications) else FAILED)


def _of_model(options: argparse.Namespace) -> tuple[Verification, ...]:
    from tf_amp.tools.verify.verifying import verify_saved_model

    settings = checked_settings(
        dtype=options.dtype,
        opt_level=options.opt_level,
        device_profile=options.device_profile,
    )
    settings["exclude"] = checked_patterns(options.exclude)
    try:
        with _shared.progress_shown():
            return verify_saved_model(
                options.model,
                settings,
                signature=options.signature,
                file=options.data,
                tolerance=checked_tolerance(options.tolerance),
                batch=options.batch,
                bisect=options.bisect,
            )
    except NotMeasurableError as error:
        say(f"{error}")
        return ()


def _of_script(options: argparse.Namespace, source: Source) -> tuple[Verification, ...]:
    """Run the script, then verify its graphs on what they first got."""
    from tf_amp.tools.verify.cases import captured_cases
    from tf_amp.tools.verify.verifying import verified

    cases, skipped = captured_cases(source.run, _shared.environment_from(options))
    if not cases and not skipped:
        say(f"{_shared.why_no_graph()}.")
    verifications: list[Verification] = []
    with _shared.progress_shown():
        for case in progress.each(cases, "verifying graphs"):
            try:
                verifications.append(
                    verified(
                        case,
                        tolerance=checked_tolerance(options.tolerance),
                        bisect=options.bisect,
                        data="the inputs of its first run in the script",
                    )
                )
            except NotMeasurableError as error:
                skipped[case.name] = str(error)
    for name, why in skipped.items():
        say(f"{name} is not verified: {why}")
    return tuple(verifications)
