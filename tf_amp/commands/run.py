"""`tf-amp run`: a script, or a module, in mixed precision."""

from __future__ import annotations

import argparse

from tf_amp.commands._shared import DONE, Options, environment_from
from tf_amp.config.amp_config import OPTIONS, VERBOSE
from tf_amp.config.setting_values import (
    LISTS,
    VERBS,
    ListEdit,
    checked_edits,
    env_from_edits,
)
from tf_amp.errors import ConfigError
from tf_amp.tools import running_scripts

SUMMARY = "run a script in mixed precision"
ENDS_AS_PYTHON = True
EXITS = {DONE: "and others: the script's own"}


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    for name in OPTIONS:
        options.setting(name)
    for verb in VERBS:
        options.checked(
            f"--{verb}",
            _edit_from,
            action="append",
            default=[],
            metavar="LIST=OP,OP",
            help=f"{verb} ops of the list {', '.join(LISTS[:-1])} or {LISTS[-1]}",
        )
    options.flag("-q", "--quiet", help="print nothing of tf-amp's own")
    options.flag("-v", "--verbose", dest="is_logged", help="print one line per graph")
    running_scripts.add_script_to(options.parser)


def main(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    given = ((verb, text) for verb in VERBS for text in getattr(options, verb))
    listed = tuple(_edit_from(text, f"--{verb}") for verb, text in given)
    edits = env_from_edits(checked_edits(listed))
    quiet = {VERBOSE: "0"} if options.quiet else {}
    running_scripts.switch_on({**environment_from(options), **quiet, **edits})
    if options.is_logged:
        from absl import logging

        logging.set_verbosity(logging.INFO)
    try:
        running_scripts.run_script(
            options.script, options.arguments, as_module=options.module
        )
    except ConfigError as error:
        if not error.is_of_environment:
            raise
        # Whether there is such an op is known once the script has imported TensorFlow;
        # what was typed for the variables of edits are options.
        message = str(error)
        for name in edits:
            verb = name.rpartition("_")[2].lower()
            message = message.replace(f"{name}:", f"--{verb}:")
        raise ConfigError(message) from error
    return DONE


def _edit_from(text: str, option: str) -> ListEdit:
    """Return the edit of a list that "LIST=OP,OP" stands for."""
    name, _, ops = text.partition("=")
    if name not in LISTS or not ops:
        raise ConfigError(
            f"{option}: received {text!r}; wanted is LIST=OP,OP, where LIST is one of "
            f"{', '.join(LISTS)}."
        )
    return ListEdit(option.removeprefix("--"), name, tuple(ops.split(",")), option)
