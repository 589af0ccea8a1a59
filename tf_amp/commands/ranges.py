"""`tf-amp ranges`: what the tensors of a script, or of a SavedModel, keep to."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import sys
from typing import TYPE_CHECKING, TextIO

from tf_amp.commands.shared import arguments, printing, script_graphs
from tf_amp.commands.shared.arguments import add_rows_to
from tf_amp.config import amp_config
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.config.counts import counted
from tf_amp.errors import ConfigError
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.whole_files import check_writable, write_whole

if TYPE_CHECKING:
    from tf_amp.config.ranges import Ranges

_NOTHING_SEEN = 3

SUMMARY = "record the ranges that tensors keep to, and what leaves the 16-bit range"
TAKES_SCRIPT = True


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what `tf-amp ranges` understands to its parser."""
    add = parser.add_argument
    arguments.add_model_to(parser, data="batches for a SavedModel")
    add("--dtype", choices=LOW_DTYPES, default="float16", help="float16 by default")
    add("--limit", type=float, help="largest safe magnitude (512 in float16)")
    add(
        "--underflow",
        type=float,
        metavar="SHARE",
        help="largest share of a tensor that may become zero (0.5)",
    )
    add("--depth", type=int, metavar="N", help="most values to sum up (any number)")
    add_rows_to(parser, "--top", 20)
    add("--out", type=pathlib.Path, metavar="FILE", help="for TF_AMP_RANGES=FILE")
    add("--json", action="store_true", help="print JSON, all rows")


def main(options: argparse.Namespace) -> int:
    """Measure ranges, print them with what would stay float32; return the exit code."""
    arguments.check_model(options)
    _check_range(options)
    if options.out is not None:
        check_writable("--out", options.out)
    check_tensorflow()
    from tf_amp.config.ranges import DEFAULT_UNDERFLOW

    underflow = DEFAULT_UNDERFLOW if options.underflow is None else options.underflow
    stream = printing.stream_for(options)
    seen = dataclasses.replace(
        _measured(options),
        limit=options.limit,
        underflow=underflow,
        depth=options.depth,
    )
    _print(seen, options, stream)
    if options.out is not None:
        write_whole(options.out, seen.to_json().encode())
        print(
            f"tf-amp: written to {options.out}; TF_AMP_RANGES={options.out} uses it.",
            file=sys.stderr,
        )
    return 0 if seen.tensors else _NOTHING_SEEN


def _check_range(options: argparse.Namespace) -> None:
    if options.limit is not None and not options.limit > 0.0:
        raise ConfigError(f"--limit must be greater than 0, got {options.limit:g}.")
    if options.underflow is not None and not 0.0 <= options.underflow <= 1.0:
        raise ConfigError(f"--underflow must be 0 to 1, got {options.underflow:g}.")
    if options.depth is not None and options.depth < 1:
        raise ConfigError(f"--depth must be at least 1, got {options.depth}.")
    if options.model.is_dir() and options.data is None:
        raise ConfigError(
            f"{options.model} is a SavedModel: --data FILE.npz with inputs is needed."
        )


def _measured(options: argparse.Namespace) -> Ranges:
    if options.model.is_dir():
        from tf_amp.tools.verify.functions import ranges_of_saved_model

        with printing.progress_shown():
            return ranges_of_saved_model(options.model, options.data, options.signature)
    from tf_amp.tools.verify.scripts import ranges_of_script

    run = functools.partial(script_graphs.run, options)
    # Gradients are judged as they are, not as a loss scale moves them.
    return ranges_of_script(run, {amp_config.LOSS_SCALE: "none"})


def _print(seen: Ranges, options: argparse.Namespace, stream: TextIO) -> None:
    if options.json:
        print(seen.to_json(), file=stream, flush=True)
        return
    printing.show(seen.top(options.top))
    unsafe = seen.unsafe(options.dtype)
    operations = counted(len(unsafe), "operation")
    print(f"{operations} would stay float32 in {options.dtype}{':' if unsafe else '.'}")
    for name, why in list(unsafe.items())[: options.top]:
        print(f"  {name}: {why}")
