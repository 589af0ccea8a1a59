"""`tf-amp run`: a script, or a module, in mixed precision."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from tf_amp.commands.shared.arguments import (
    add_checked_to,
    add_rewriting_to,
    check_file,
    environment_from,
)
from tf_amp.commands.shared.exit_codes import DONE
from tf_amp.config import amp_config
from tf_amp.config.amp_config import LEVELS
from tf_amp.config.list_edits import (
    LISTS,
    VERBS,
    ListEdit,
    checked_edits,
    env_from_edits,
)
from tf_amp.config.loss_scales.words import loss_scale_from_words
from tf_amp.config.setting_values import checked_fusions, checked_tune
from tf_amp.errors import ConfigError
from tf_amp.tools import running_scripts

SUMMARY = "run a script in mixed precision"
ENDS_AS_PYTHON = True
EXITS = {DONE: "and others: the script's own"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    add = parser.add_argument
    levels = "; ".join(f"{name} {summary}" for name, summary in LEVELS.items())
    add_rewriting_to(parser, levels)
    add("--log", metavar="DIR", help="write graphs and plans there")
    add_checked_to(
        parser,
        "--loss-scale",
        loss_scale_from_words,
        metavar="SCALE",
        help="dynamic, statistical, none, or a number; by default as the type needs it",
    )
    add_checked_to(
        parser,
        "--tune",
        checked_tune,
        help="on (default) or off: whether own steps decide what is close",
    )
    add_checked_to(
        parser,
        "--fuse",
        checked_fusions,
        metavar="RULES",
        help="on (default), off, or rewrites beside types",
    )
    for verb in VERBS:
        add_checked_to(
            parser,
            f"--{verb}",
            _edit_from,
            action="append",
            default=[],
            metavar="LIST=OP,OP",
            help=f"{verb} ops of the list {', '.join(LISTS[:-1])} or {LISTS[-1]}",
        )
    add_checked_to(
        parser,
        "--ranges",
        check_file,
        metavar="FILE",
        help="what `tf-amp ranges` wrote",
    )
    add("--check", choices=("on", "off"), help="whether kernels are checked first")
    add("--strict", action="store_true", help="raise on failure")
    add("-q", "--quiet", action="store_true", help="print nothing of tf-amp's own")
    add("-v", "--verbose", action="store_true", help="print one line per graph")
    running_scripts.add_script_to(parser)


def main(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    edits = _list_edits(options)
    environment = {
        **environment_from(options),
        amp_config.LOG: options.log,
        amp_config.LOSS_SCALE: options.loss_scale,
        amp_config.TUNE: options.tune,
        amp_config.FUSE: options.fuse,
        amp_config.CHECK: options.check,
        amp_config.STRICT: "1" if options.strict else None,
        amp_config.RANGES: options.ranges,
        amp_config.VERBOSE: "0" if options.quiet else None,
        **edits,
    }
    running_scripts.switch_on(environment)
    if options.verbose:
        from absl import logging

        logging.set_verbosity(logging.INFO)
    try:
        running_scripts.run_script(
            options.script, options.arguments, as_module=options.module
        )
    except ConfigError as error:
        if not error.is_of_environment:
            raise
        raise ConfigError(_with_options(str(error), edits)) from error
    return DONE


def _with_options(message: str, edits: Iterable[str]) -> str:
    """Return a message with the options that were typed for the variables of edits.

    Whether there is such an op is known once the script has imported TensorFlow.
    """
    for name in edits:
        verb = name.rpartition("_")[2].lower()
        message = message.replace(f"{name}:", f"--{verb}:")
    return message


def _list_edits(options: argparse.Namespace) -> dict[str, str]:
    """Return edits of lists as variables of the environment."""
    given = ((verb, text) for verb in VERBS for text in getattr(options, verb))
    edits = tuple(_edit_from(text, f"--{verb}") for verb, text in given)
    return env_from_edits(checked_edits(edits))


def _edit_from(text: str, option: str) -> ListEdit:
    """Return the edit of a list that "LIST=OP,OP" stands for."""
    name, _, ops = text.partition("=")
    if name not in LISTS or not ops:
        raise ConfigError(
            f"{option}: received {text!r}; wanted is LIST=OP,OP, where LIST is one of "
            f"{', '.join(LISTS)}."
        )
    return ListEdit(option.removeprefix("--"), name, tuple(ops.split(",")), option)
