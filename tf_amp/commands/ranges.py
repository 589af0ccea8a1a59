"""`tf-amp ranges`: what the tensors of a script, or of a SavedModel, keep to."""

from __future__ import annotations

import argparse
import dataclasses

from tf_amp.commands import _shared
from tf_amp.commands._shared import DONE, FAILED, NOTHING, Options, Source, say
from tf_amp.config import amp_config
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.errors import ConfigError
from tf_amp.report.counts import counted
from tf_amp.report.files import check_writable, write_whole
from tf_amp.tensorflow_version import check_tensorflow

SUMMARY = "record the ranges that tensors keep to, and what leaves the 16-bit range"
TAKES_SCRIPT = True
EXITS = {
    DONE: "the ranges are printed",
    FAILED: "the script failed",
    NOTHING: "no tensor was seen",
}


def add_options(options: Options) -> None:
    """Declare the options of the command."""
    options.model(data="batches for a SavedModel")
    add = options.add
    add("--dtype", choices=LOW_DTYPES, default="float16", help="float16 by default")
    add("--limit", type=float, help="largest safe magnitude (512 in float16)")
    add(
        "--underflow",
        type=float,
        metavar="SHARE",
        help="largest share of a tensor that may become zero (0.5)",
    )
    add("--depth", type=int, metavar="N", help="most values to sum up (any number)")
    options.rows("--top", 20)
    options.path("--out", metavar="FILE", help="for TF_AMP_RANGES=FILE")
    options.flag("--json", help="print JSON, all rows")


def main(options: argparse.Namespace) -> int:
    """Measure ranges, print them with what would stay float32; return the exit code."""
    source = Source(options)
    if options.limit is not None and not options.limit > 0.0:
        raise ConfigError(f"--limit must be greater than 0, got {options.limit:g}.")
    if options.underflow is not None and not 0.0 <= options.underflow <= 1.0:
        raise ConfigError(f"--underflow must be 0 to 1, got {options.underflow:g}.")
    if options.depth is not None and options.depth < 1:
        raise ConfigError(f"--depth must be at least 1, got {options.depth}.")
    if source.is_model and options.data is None:
        raise ConfigError(
            f"{options.model} is a SavedModel: --data FILE.npz with inputs is needed."
        )
    if options.out is not None:
        check_writable("--out", options.out)
    check_tensorflow()
    from tf_amp.config.ranges import DEFAULT_UNDERFLOW

    underflow = DEFAULT_UNDERFLOW if options.underflow is None else options.underflow
    if source.is_model:
        from tf_amp.tools.ranges import ranges_of_saved_model

        with _shared.progress_shown():
            seen = ranges_of_saved_model(options.model, options.data, options.signature)
    else:
        from tf_amp.tools.ranges import ranges_of_script

        # Gradients are judged as they are, not as a loss scale moves them.
        seen = ranges_of_script(source.run, {amp_config.LOSS_SCALE: "none"})
    seen = dataclasses.replace(
        seen, limit=options.limit, underflow=underflow, depth=options.depth
    )
    if options.json:
        print(seen.to_json(), file=source.stream, flush=True)
    elif seen.tensors:
        from tf_amp.report.display import show

        show(seen.top(options.top))
        unsafe = seen.unsafe(options.dtype)
        operations, end = counted(len(unsafe), "operation"), ":" if unsafe else "."
        print(f"{operations} would stay float32 in {options.dtype}{end}")
        for name, why in list(unsafe.items())[: options.top]:
            print(f"  {name}: {why}")
    if not seen.tensors:
        why = "" if source.is_model else f", since {_shared.why_no_graph()}"
        say(f"no tensor was seen{why}.")
        return source.exit_code(NOTHING)
    if options.out is not None:
        write_whole(options.out, seen.to_json().encode())
        say(f"written to {options.out}; TF_AMP_RANGES={options.out} uses it.")
    return source.exit_code(DONE)
