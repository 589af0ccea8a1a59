"""Look for 16-bit kernels of TensorFlow that compute wrong numbers.

python -m tests.kernels [N] [--threads N] [--directed] [--through O1|O2] ...

Exit code 0 when every kernel is right.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections import Counter
from typing import Any

import tensorflow as tf

from tests import kernel_check, kernel_draws
from tests.campaign import Command
from tests.kernel_calls import KernelCase, parsed

# Memory that the allocator hands out is filled with bytes that are huge or NaN.
_PERTURBED = {"MALLOC_PERTURB_": "128"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    options, _ = _parser().parse_known_args(arguments)
    os.environ.update(_PERTURBED)
    command = Command(
        "tests.kernels",
        __doc__ or "",
        functools.partial(_check_seed, options),
        lambda seed: _show(options, _drawn(options, seed)),
        _summary,
        own_options=(_parser(),),
        passed=tuple(_words(options)),
    )
    if options.case is not None:
        return 0 if _show(options, parsed(options.case)) else 1
    return command.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--threads", type=int, default=1, help="of an op")
    parser.add_argument("--directed", action="store_true", help="near known faults")
    parser.add_argument("--through", choices=("O1", "O2"), help="run by tf-amp")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16"), help="this one; both without it"
    )
    parser.add_argument("--case", help="check this one, in this process")
    return parser


def _words(options: argparse.Namespace) -> list[str]:
    """Return the command line that says what workers are to check."""
    words = ["--threads", str(options.threads)]
    words += ["--directed"] if options.directed else []
    words += ["--dtype", options.dtype] if options.dtype else []
    return words + (["--through", options.through] if options.through else [])


def _drawn(options: argparse.Namespace, seed: int) -> KernelCase:
    draw = kernel_draws.directed if options.directed else kernel_draws.draw
    return draw(seed)


@functools.cache
def _set_threads(count: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def _faults(options: argparse.Namespace, case: KernelCase) -> list[Any] | None:
    _set_threads(options.threads)
    low_dtypes = (options.dtype,) if options.dtype else kernel_check.LOW_DTYPES
    if options.through:
        return kernel_check.faults_through(case, options.through, low_dtypes)
    return kernel_check.faults_of(case, ("float32", *low_dtypes))


def _check_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    case = _drawn(options, seed)
    faults = _faults(options, case)
    if faults is None:
        return {"failures": [], "refused": 1}
    dtypes = {fault.dtype for fault in faults}
    too = "in float32, too: " if "float32" in dtypes else ""
    texts = [f"{too}{fault}, {_threads(options)}: {case}" for fault in faults]
    wrong = {f"{case.op} {dtype}": 1 for dtype in dtypes}
    return {"failures": ["\n  ".join(texts)] if texts else [], **wrong}


def _show(options: argparse.Namespace, case: KernelCase) -> bool:
    print(f"{case}, {_threads(options)}", flush=True)
    faults = _faults(options, case)
    print(*(["refused"] if faults is None else faults or ["right"]), sep="\n")
    return not faults


def _threads(options: argparse.Namespace) -> str:
    return f"{options.threads} thread{'s' if options.threads > 1 else ''}"


def _summary(totals: Counter[str]) -> str:
    refused = totals.pop("refused", 0)
    wrong = ", ".join(f"{name} {count}" for name, count in sorted(totals.items()))
    return f"{refused} that TensorFlow refuses, wrong: {wrong or 'none'}"


if __name__ == "__main__":
    sys.exit(main())
