"""`tf-amp verify`: a SavedModel, or the graphs of a script on what they first get."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_amp.commands.shared import arguments, printing, script_graphs
from tf_amp.commands.shared.arguments import add_rewriting_to, environment_from
from tf_amp.commands.shared.exit_codes import DONE, FAILED, NOTHING
from tf_amp.config.setting_values import checked_patterns, checked_tolerance
from tf_amp.errors import ConfigError, NotMeasurableError
from tf_amp.report.counts import counted
from tf_amp.report.files import check_writable
from tf_amp.run import progress
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.choice import Choice

if TYPE_CHECKING:
    from tf_amp.tools.verify.verification import Verification

SUMMARY = "compare the numbers of mixed precision with those of float32"
TAKES_SCRIPT = True
EXITS = {
    DONE: "the numbers hold",
    FAILED: "they do not, or the script failed",
    NOTHING: "nothing could be verified",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what `tf-amp verify` understands to its parser."""
    add = parser.add_argument
    arguments.add_model_to(parser, data="inputs of a SavedModel")
    arguments.add_batch_to(parser)
    add_rewriting_to(parser, "O1 to O3")
    arguments.add_checked_to(
        parser,
        "--tolerance",
        checked_tolerance,
        metavar="X",
        help="largest relative error; 8 roundings by default",
    )
    add(
        "--bisect", action="store_true", help="find what must be float32 for it to hold"
    )
    add(
        "--write",
        type=pathlib.Path,
        metavar="FILE",
        help="where --bisect writes what to exclude (tf-amp-exclude.txt)",
        default=pathlib.Path("tf-amp-exclude.txt"),
    )
    add("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    """Verify what the command line names, print what is found, return the exit code."""
    arguments.check_model(options)
    if options.data is not None and options.batch is not None:
        raise ConfigError("--batch: --data has batches of their own sizes.")
    if options.bisect:
        check_writable("--write", options.write)
    check_tensorflow()
    stream, script = printing.stream_for(options), script_graphs.Script(options)
    is_model = options.model.is_dir()
    found = _of_model(options) if is_model else _of_script(options, script)
    if options.json:
        printing.show_json(found, stream)
    else:
        printing.show(*found)
    for each in _unmatched(found):
        said = f"exclude: {each!r} matches no operation of what was verified"
        print(f"tf-amp: {said}.", file=sys.stderr)
    if options.bisect:
        _write_culprits(found, options.write)
    if not found:
        print("tf-amp: nothing was verified.", file=sys.stderr)
        return script.exit_code(NOTHING)
    return script.exit_code(DONE if all(each.ok for each in found) else FAILED)


def _of_model(options: argparse.Namespace) -> tuple[Verification, ...]:
    from tf_amp.tools.verify.functions import verify_saved_model

    choice = Choice(
        options.dtype,
        options.opt_level,
        options.device_profile,
        checked_patterns(options.exclude),
    )
    try:
        with printing.progress_shown():
            return verify_saved_model(
                options.model,
                choice,
                signature=options.signature,
                file=options.data,
                tolerance=checked_tolerance(options.tolerance),
                batch=options.batch,
                bisect=options.bisect,
            )
    except NotMeasurableError as error:
        print(f"tf-amp: {error}", file=sys.stderr)
        return ()


def _of_script(
    options: argparse.Namespace, script: script_graphs.Script
) -> tuple[Verification, ...]:
    """Run the script, then verify its graphs on what they first got."""
    from tf_amp.tools.verify.scripts import captured_cases
    from tf_amp.tools.verify.verifying import verified

    cases, skipped = captured_cases(script.run, environment_from(options))
    if not cases and not skipped:
        print(f"tf-amp: {script_graphs.why_no_graph()}.", file=sys.stderr)
    found: list[Verification] = []
    with printing.progress_shown():
        for case in progress.each(cases, "verifying graphs"):
            try:
                found.append(
                    verified(
                        case,
                        tolerance=checked_tolerance(options.tolerance),
                        bisect=options.bisect,
                        data="what the graph got when it first ran",
                    )
                )
            except NotMeasurableError as error:
                skipped[case.name] = str(error)
    for name, why in skipped.items():
        print(f"tf-amp: {name} is not verified: {why}", file=sys.stderr)
    return tuple(found)


def _unmatched(found: Sequence[Verification]) -> list[str]:
    """Return the exclusions that match no operation of any graph."""
    given = dict.fromkeys(pattern for each in found for pattern in each.excluded)
    return [p for p in given if all(p in each.unmatched for each in found)]


def _write_culprits(found: Sequence[Verification], path: pathlib.Path) -> None:
    from tf_amp.tools.verify.verification import write_exclude_list

    culprits = {c.pattern: c for each in found for c in each.culprits or ()}
    if not culprits:
        return
    in_force = {pattern for each in found for pattern in each.excluded}
    heading = "What tf-amp verify --bisect found."
    write_exclude_list(path, culprits.values(), heading, in_force)
    print(
        f"tf-amp: {counted(len(culprits), 'operation')} written to {path}; "
        f"TF_AMP_EXCLUDE=@{path} and --exclude @{path} keep "
        f"{'it' if len(culprits) == 1 else 'them'} in float32.",
        file=sys.stderr,
    )
