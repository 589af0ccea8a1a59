"""Where the tests of this folder run: on a GPU, or on a CPU where that is asked for.

    GPU_TESTS_ON=cpu python -m pytest tests/gpu

runs on a CPU what a CPU can show. That is for those who change these tests: `make test`
shows the same of CPUs by other tests, and skips these where no GPU is.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Mapping

import pytest

from tests.placing import GPUS, KIND
from tests.processes import Outcome, folder_that_hides, run, run_python

_ASKED = os.environ.get("GPU_TESTS_ON") == "cpu"
_REASON = "no GPU is here"

# Marks of tests that run on either device, and of those that need a GPU.
ON_THE_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (GPUS or _ASKED), reason=_REASON),
]
needs_gpu = pytest.mark.skipif(not GPUS, reason=_REASON)

# Programs in processes of their own begin with this. DEVICE is the one that is tested;
# after `split` FIRST and SECOND are two logical ones of it.
PRELUDE = f"""
import os
import numpy as np
import tensorflow as tf
KIND = {KIND!r}
DEVICE, FIRST, SECOND = f"{{KIND}}:0", f"{{KIND}}:0", f"{{KIND}}:1"
tf.config.experimental.enable_tensor_float_32_execution(False)

def split():
    limits = {{"memory_limit": 4096}} if KIND == "GPU" else {{}}
    two = [tf.config.LogicalDeviceConfiguration(**limits)] * 2
    physical, *_ = tf.config.list_physical_devices(KIND)
    tf.config.set_logical_device_configuration(physical, two)
"""


def lines_of(program: str, **env: str) -> list[str]:
    """Run PRELUDE and a program in a fresh process; return the lines it prints."""
    return run_on_the_device(program, **env).lines()


def run_on_the_device(program: str, **env: str) -> Outcome:
    """Run PRELUDE and a program in a fresh process.

    A forked one would not do: CUDA works in no child of a process that has begun it.
    """
    return run_python(PRELUDE + program, env={**_environment(), **env})


def run_command(
    *arguments: str, cwd: pathlib.Path, env: Mapping[str, str] | None = None
) -> Outcome:
    """Run what `tf-amp ARGUMENTS` does, in a fresh process."""
    command = [sys.executable, "-m", "tf_amp", *arguments]
    return run(command, env={**_environment(), **(env or {})}, cwd=cwd)


def _environment() -> dict[str, str]:
    """Return what a process needs to find the same modules, and to share a GPU."""
    paths = [str(folder_that_hides()), *filter(None, sys.path)]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
