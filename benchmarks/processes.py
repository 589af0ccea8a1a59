"""Fresh processes for what one process measures."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tf_amp.tools.bench.job import without_settings

ROOT = Path(__file__).resolve().parent.parent
_ALWAYS = {
    "KERAS_BACKEND": "tensorflow",
    "TF_AMP_VERBOSE": "0",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def worker_environment() -> dict[str, str]:
    """Return the caller's environment without settings of tf-amp."""
    kept = without_settings(os.environ)
    # TensorFlow is installed with its bytecode.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | _ALWAYS


def worker_lines(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return the lines that a worker of a benchmark prints.

    Args:
        module: under ``benchmarks``.
        arguments: for it.
        environment: that of ``worker_environment`` if None.

    Raises:
        RuntimeError: it failed; the message has the end of its errors.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=ROOT,
        env=environment or worker_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = done.stderr.strip()[-2000:]
        raise RuntimeError(f"{module} failed ({done.returncode}): {reason}")
    return done.stdout.splitlines()
